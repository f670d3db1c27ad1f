"""One learner's file -> points, with a reason and a hint for each check that failed."""
import dataclasses
import os
import pathlib
import shutil
import tempfile

import skeleton

RANKS = (1, 2, 4)

# What happened to a run, where the exercise has no better hint of its own. The check's hint comes with it.
GENERAL = {
    "hang": ("The ranks wait for something that never comes, or a loop does not end. Does every rank make the same calls, in the same order?",
             "Write down, for two ranks, each call in order; look for the first that has no partner. Branches on rank(), on samples or on an empty span are the usual suspects."),
    "disagree": ("The ranks did not make the same call at the same time; the message names both.",
                 "A collective must be reached by every rank, with the same size: look for a return or a branch before it that only some ranks take."),
    "crash": ("The program was ended from outside or by itself: an index beyond the end of a span is the usual cause.",
              "Compile your file with -fsanitize=address, or check each index against size(); a part may be empty, and a negative number modulo p stays negative."),
    "stopped": ("Your code threw an exception; the text is its message.", "It may come from a call to Ranks (look at its rules in kit.hpp) or from a container."),
    "broken": ("The judge itself could not go on; the message says why. If it is not your file, tell the author of the exercise.", ""),
}


@dataclasses.dataclass
class Verdict:
    """Of one check."""
    check: object
    status: str     # passed | failed | not reached
    where: int = 0  # on how many ranks it failed first
    seen: str = ""
    hint: str = ""
    more: str = ""
    key: str = ""   # the name of the hint

    @property
    def points(self):
        return self.check.points if self.status == "passed" else 0


@dataclasses.dataclass
class Result:
    exercise: object
    status: str          # done | begun | not started | does not compile | missing | cannot be read
    verdicts: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    compiler: str = ""
    output: str = ""
    device: str = ""

    @property
    def points(self):
        return sum(verdict.points for verdict in self.verdicts)


def without_points(exercise, status, **more):
    return Result(exercise, status, [Verdict(check, "not reached") for check in exercise.checks], **more)


def judge_runs(exercise, runs):
    """A check is passed if it was passed on every number of ranks."""
    names = [check.name for check in exercise.checks]
    for run in runs:
        for finding in run.findings:
            if finding.check not in names:
                finding.check = names[0]
    verdicts = []
    for check in exercise.checks:
        mine = [(run, finding) for run in runs for finding in run.findings if finding.check == check.name]
        failed = next(((run, finding) for run, finding in mine if not finding.ok), None)
        if failed:
            run, finding = failed
            hint, more = exercise.hints.get(finding.hint) or (check.hint, check.more)
            if finding.hint in GENERAL and finding.hint not in exercise.hints:
                general = GENERAL[finding.hint]
                hint, more = f"{general[0]} And: {check.hint}", f"{general[1]} {check.more}".strip()
            verdicts.append(Verdict(check, "failed", run.ranks, finding.seen, hint, more, finding.hint))
        else:
            reached = {run.ranks for run, _ in mine} == {run.ranks for run in runs}
            verdicts.append(Verdict(check, "passed" if reached else "not reached"))
    result = Result(exercise, "begun", verdicts, output="\n".join(run.output for run in runs if run.ended != "in order" or len(runs) == 1)[-4000:],
                    device=", ".join(sorted({run.device for run in runs if run.device})))
    if result.points == exercise.points:
        result.status = "done"
    return result


class Keeper:
    """Holds the learner's files while their programs run: what one of them deletes, changes, locks or puts something else in the place of, is put back."""

    def __init__(self, folder):
        self.folder = folder
        paths = [*folder.glob("*"), *folder.glob("*/*")] if folder else []
        held = {pathlib.Path(os.path.realpath(path)): skeleton.read_bytes(path) for path in paths}
        self.files = {path: content for path, content in held.items() if content is not None}

    def put_back(self):
        changed, lost = [], []
        for path, content in self.files.items():
            if skeleton.read_bytes(path) == content and not path.is_symlink():
                continue
            try:
                put(path, content, pathlib.Path(os.path.realpath(self.folder)))
                changed.append(path.name)
            except OSError as error:
                lost.append(f"{path} could not be put back ({error.strerror})")
        return [*([f"the program deleted or changed {len(changed)} file(s) of {self.folder} ({', '.join(sorted(changed)[:3])}...); they were put back"] if changed else []), *lost]


def put(path, content, root):
    """A file with this content below `root`, whatever is there now. Beside it first, then in its place: a link that was put there is not followed."""
    for folder in reversed([path.parent, *path.parent.parents]):
        if folder == root or root in folder.parents:
            if folder.is_symlink() or not folder.is_dir():
                folder.unlink(missing_ok=True)  # a file or a link where a folder was
                folder.mkdir()
            if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                folder.chmod(0o755)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def grade(exercise, source_text, court, desk_folder=None, ranks=RANKS):
    """Compiles and runs one file on its own. Whatever it does costs no other exercise anything."""
    room = pathlib.Path(tempfile.mkdtemp(prefix="manyranks-build-"))
    keeper = Keeper(desk_folder)
    try:
        source, library = room / f"{exercise.name}.cpp", room / f"{exercise.name}.so"
        source.write_text(source_text)
        said = court.toolchain.compile(exercise, source, library)
        if said is not None:
            return without_points(exercise, "does not compile", compiler=said)
        runs = []
        for count in ranks:
            runs += court.judge([(exercise.name, library)], count)
            if runs[-1].timed_out:
                break  # an endless loop: once is enough
        result = judge_runs(exercise, runs)
        skipped = [str(count) for count in ranks if count not in {run.ranks for run in runs}]
        if skipped:
            result.notes.append(f"not run on {' and '.join(skipped)} ranks, because of the endless run before")
            for verdict in result.verdicts:
                if verdict.status == "passed":
                    verdict.status = "not reached"
            result.status = "begun"
        result.notes += keeper.put_back()
        return result
    finally:
        keeper.put_back()
        shutil.rmtree(room, ignore_errors=True)
