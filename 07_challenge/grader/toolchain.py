"""What the build left for the grader: the compiler, the judge, who starts ranks; and how a learner's file is compiled."""
import functools
import json
import pathlib

import processes
from catalog import CHALLENGE, ROOT
from entry import Broken
from ranks import Starter

COMPILE_SECONDS = 60


class NotBuilt(Exception):
    """There is no judge yet."""


class Toolchain:
    def __init__(self, build=ROOT / "build"):
        self.build = pathlib.Path(build).resolve()
        self.judge = self.build / "07_challenge" / "judge"
        self.file = self.build / "07_challenge" / "toolchain.json"

    @functools.cached_property
    def settings(self):
        return json.loads(self.file.read_text())

    def check(self):
        if not self.judge.exists() or not self.file.exists():
            raise NotBuilt(f"the judge is not built yet ({self.judge} is missing); run: ./scripts/setup.sh && cmake --preset default && cmake --build build --target challenge")

    def starter(self):
        return Starter(self.settings.get("mpiexec"))

    def limits(self, cuda=False):
        """A sanitizer's shadow and CUDA's address space are far larger than any heap, and count as such."""
        return processes.Limits(heap_bytes=None) if cuda or self.settings.get("sanitize") else processes.Limits()

    def flags(self, exercise=None):
        folders = [CHALLENGE / "kit", *([exercise.folder] if exercise else [])]
        return ["-std=c++20", "-O1", "-Wall", "-Wextra", *(f"-I{folder}" for folder in folders)]

    def compile(self, exercise, source, library):
        """Returns what the compiler said, or None if all is well. The folder of `library` must exist."""
        # -z defs: a helper that is declared and not defined is said here, with its name, and not when the judge loads the file.
        command = [self.settings["compiler"], *self.flags(exercise), "-fPIC", "-shared", "-Wl,-z,defs", "-o", str(library), str(source)]
        ended = processes.run(command, cwd=library.parent, seconds=COMPILE_SECONDS)
        if ended.timed_out:
            return f"the compiler was still busy after {COMPILE_SECONDS} s"
        if ended.code == 127:
            raise Broken(ended.output)
        if ended.code != 0:
            return ended.output.replace(str(source), source.name).strip() or f"the compiler ended with code {ended.code}"
        return None
