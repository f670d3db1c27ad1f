"""From a solution to a learner's copy. A solution is a real file with regions:

    // <<< todo
    // What is to be done, kept in the learner's copy.
    // <<< until then
    // return 0;             (code that compiles, without its comment sign, in the learner's copy)
    // <<< solution
    return answer();         (cut)
    // >>>
"""
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import stat

MOST_BYTES = 1 << 20  # of a learner's file
MARK = re.compile(r"^\s*// (<<<|>>>) ?(.*)$")
ORDER = ("todo", "until then", "solution")


class Malformed(Exception):
    """The regions of a solution, or of a wrong answer, are not as they should be."""


def regions(text):
    """Splits into a list of plain lines (strings) and regions (a dictionary: name of the part -> lines)."""
    parts, region, part = [], None, None
    for number, line in enumerate(text.splitlines(), 1):
        mark = MARK.match(line)
        if not mark:
            parts.append(line) if region is None else region[part].append(line)
        elif mark[1] == ">>>":
            if region is None or list(region) != list(ORDER):
                raise Malformed(f"line {number}: a region has the parts {', '.join(ORDER)}, in this order")
            parts.append(region)
            region = None
        else:
            if mark[2] not in ORDER or (mark[2] == "todo") != (region is None):
                raise Malformed(f"line {number}: {line.strip()!r} at the wrong place")
            region, part = region or {}, mark[2]
            region[part] = []
    if region is not None:
        raise Malformed("the last region is never closed")
    if not any(isinstance(part, dict) for part in parts):
        raise Malformed("no region at all: there is nothing to do")
    return parts


def assemble(text, fill):
    """The file with fill(region, number) in place of each region."""
    lines, number = [], 0
    for part in regions(text):
        if isinstance(part, str):
            lines.append(part)
        else:
            lines += fill(part, number)
            number += 1
    return "\n".join(lines) + "\n"


def skeleton(text):
    """The learner's copy: instructions and code that compiles, no solution."""
    def fill(region, _):
        first = region["todo"][0]
        indent = first[: len(first) - len(first.lstrip())]
        todo = [first.replace("// ", "// TODO: ", 1), *region["todo"][1:]]
        return [*todo, *(re.sub(r"^(\s*)// ?", r"\1", line) for line in region["until then"]), f"{indent}// (until here)"]
    return assemble(text, fill)


def learners_copy(exercise):
    """The skeleton, and where to look, behind its first line."""
    first, rest = skeleton(exercise.solution).split("\n", 1)
    contract = getattr(exercise, "contract", f"exercises/{exercise.name}/{exercise.name}.hpp. What you may use: 07_challenge/kit/kit.hpp")
    return f"{first}\n// The contract: 07_challenge/{contract}. Grade it: ./scripts/grade.sh {exercise.name}\n{rest}"


def with_answers(text, answers):
    """The solution with other answers, one list of lines per region."""
    count = sum(isinstance(part, dict) for part in regions(text))
    if count != len(answers):
        raise Malformed(f"{len(answers)} answers for {count} regions")
    return assemble(text, lambda _, number: answers[number])


@dataclasses.dataclass
class Wrong:
    """A wrong_N.inc: what the grader must say (check, and the name of a hint), on how many ranks, and what stands in the solution instead."""
    expect: list
    ranks: list
    answers: list  # one list of lines per region; none: the solution's
    swap: tuple    # (text outside of the regions, what comes in its place) or ()

    def text(self, solution):
        if self.swap:
            if solution.count(self.swap[0]) != 1:
                raise Malformed(f"{self.swap[0]!r} is not once in the solution")
            solution = solution.replace(*self.swap)
        return with_answers(solution, self.answers) if self.answers else solution


def wrong_answer(path):
    head, body = {}, []
    for line in path.read_text().splitlines():
        said = re.match(r"// (expect|ranks|instead of|put): (.*)$", line)
        if said and not body:
            head[said[1]] = said[2]
        else:
            body.append(line)
    answers = [[]]
    for line in body:
        answers.append([]) if line.strip() == "// ---" else answers[-1].append(line)
    if "expect" not in head:
        raise Malformed(f"{path}: no line '// expect: CHECK [HINT]'")
    code = any(line.strip() and not line.startswith("//") for line in body)
    return Wrong(head["expect"].split(), [int(n) for n in head.get("ranks", "").split()], answers if code else [], (head["instead of"], head["put"]) if "put" in head else ())


def fingerprint(text):
    return hashlib.sha256(text.encode()).hexdigest()


def read_bytes(path, most=MOST_BYTES):
    """None where it is no file, cannot be read or is too large."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # a FIFO must not keep us waiting
            content = file.read(most + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError:
        return None
    return content if content is not None and len(content) <= most else None


def read_text(path):
    content = read_bytes(path)
    return None if content is None else content.decode(errors="replace")


class Desk:
    """The folder with the learner's files, build/challenge. What a learner has changed is never overwritten."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.ledger = self.folder / ".generated.json"  # what each file was when we wrote it

    def file(self, exercise):
        return self.folder / f"{exercise.name}.cpp"

    def read(self, exercise):
        """The learner's text; None where there is no file that can be read."""
        return read_text(self.file(exercise))

    def untouched(self, exercise):
        return self.read(exercise) == learners_copy(exercise)

    def prepare(self, exercises, flags=()):
        """Writes what is missing. Returns lines that the learner should read."""
        self.folder.mkdir(parents=True, exist_ok=True)
        written = self._read_ledger()
        notes = []
        for exercise in exercises:
            file, new = self.file(exercise), learners_copy(exercise)
            known, old = written.get(exercise.name, {}), read_text(file)
            if old is None and os.path.lexists(file):
                notes.append(f"{file} cannot be read as a text: it is left as it is, and counts nothing")
            elif old is None or fingerprint(old) == known.get("began"):
                if old is None and known.get("began"):
                    notes.append(f"{file.name} was gone: here is a new one")
                self._write(file, new)
                written[exercise.name] = {"began": fingerprint(new)}
            elif fingerprint(new) != known.get("began", fingerprint(new)) and fingerprint(new) != known.get("told"):
                aside = self.folder / "newer" / file.name
                aside.parent.mkdir(exist_ok=True)
                self._write(aside, new)
                notes.append(f"the template of {exercise.name} has changed since you began; your file is as you left it, the new one is {aside}")
                written.setdefault(exercise.name, {})["told"] = fingerprint(new)
        self._write(self.ledger, json.dumps(written, indent=1) + "\n")
        if flags:
            self._write(self.folder / "compile_flags.txt", "\n".join(flags) + "\n")  # for editors that use clangd
        return notes

    def _read_ledger(self):
        try:
            said = json.loads(self.ledger.read_text())
            return said if isinstance(said, dict) and all(isinstance(known, dict) for known in said.values()) else {}
        except (OSError, ValueError):
            return {}

    @staticmethod
    def _write(path, text):
        if read_text(path) != text:
            path.write_text(text)
