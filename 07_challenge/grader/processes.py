"""Runs a command that may do anything: hang, print without end, fork. It gets limits, its output is cut, and nothing of it is left."""
import dataclasses
import os
import resource
import secrets
import selectors
import subprocess
import sys
import time

from catalog import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import launcher  # noqa: E402  (what this machine has, and how a job is ended)

KEPT_BYTES = 64 * 1024  # the last of what was printed: an error stands at the end
MARK = "MANYRANKS_RUN"  # in the environment of everything that a run starts


@dataclasses.dataclass(frozen=True)
class Limits:
    """Per process. A learner's endless allocation or file must not take the machine down. None: no limit."""
    heap_bytes: int | None = 2 << 30
    file_bytes: int | None = 1 << 30


@dataclasses.dataclass
class Ended:
    code: int
    output: str
    dropped: int  # bytes that were printed and not kept
    timed_out: bool
    seconds: float


def run(command, cwd, seconds, environment=None, limits=Limits()):
    """In a session of its own, so that Ctrl-C comes to us alone; whatever way this is left, no process stays behind."""
    began, token = time.monotonic(), secrets.token_hex(8)

    def limit():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for what, most in ((resource.RLIMIT_DATA, limits.heap_bytes), (resource.RLIMIT_FSIZE, limits.file_bytes)):
            if most is not None:
                resource.setrlimit(what, (most, most))
    try:
        process = subprocess.Popen(command, cwd=cwd, env={**(os.environ if environment is None else environment), MARK: token}, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=limit)
    except OSError as error:  # as a shell would say it
        return Ended(127, f"{command[0]} cannot be started: {error}", 0, False, 0.0)
    kept, dropped, timed_out = bytearray(), 0, False
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                left = began + seconds - time.monotonic()
                if left <= 0:
                    timed_out = True
                    break
                if not selector.select(min(left, 0.2)):
                    if process.poll() is not None:  # somebody below still holds the pipe
                        break
                    continue
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    break
                kept += chunk
                dropped += max(0, len(kept) - KEPT_BYTES)
                del kept[:-KEPT_BYTES]
        if not timed_out:
            try:
                process.wait(timeout=max(0.1, began + seconds - time.monotonic()))
            except subprocess.TimeoutExpired:
                timed_out = True
    finally:
        # Also after a good end: a learner's program may have left children.
        if process.poll() is None:
            launcher.end(process, patience=2.0)
        end_all(process.pid, token)
        process.stdout.close()
    return Ended(process.returncode, kept.decode(errors="replace"), dropped, timed_out, time.monotonic() - began)


def end_all(session, token, seconds=5.0):
    """Whoever is of this session, or carries the run's mark: setsid() leaves the one and not the other. Again until nobody is found, for one that is
    about to fork. (Who wipes its environment too has set out to hide.)"""
    deadline = time.monotonic() + seconds
    while found := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if belongs(pid, session, token)]:
        for pid in found:
            try:
                os.kill(pid, 9)
            except (ProcessLookupError, PermissionError):
                pass
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)


def belongs(pid, session, token):
    if pid == os.getpid() or not launcher.alive(pid):
        return False
    try:
        if os.getsid(pid) == session:
            return True
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={token}".encode() in file.read().split(b"\0")
    except OSError:
        return False
