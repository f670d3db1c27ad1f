#!/usr/bin/env python3
"""Grades the exercises of the challenge. Start it through ./scripts/grade.sh.

Exit: 0 all points, 1 not all, 64 usage, 69 not built yet or no ranks can be started here, 74 no folder to work in, 130 interrupted."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import catalog  # noqa: E402
import classroom  # noqa: E402
import court  # noqa: E402
import entry  # noqa: E402
import grading  # noqa: E402
import show  # noqa: E402
import skeleton  # noqa: E402
from progress import Progress  # noqa: E402
from toolchain import NotBuilt, Toolchain  # noqa: E402


def arguments():
    parser = entry.Parser(prog="grade.sh", description="Builds and grades your exercises in build/challenge, on 1, 2 and 4 ranks.")
    parser.add_argument("exercise", nargs="*", help="which ones (default: all that you have changed); a part of the name will do")
    parser.add_argument("--hint", action="store_true", help="a second hint for each check that failed")
    parser.add_argument("--all", action="store_true", help="run untouched exercises too")
    parser.add_argument("--list", action="store_true", help="the exercises, and nothing else")
    parser.add_argument("--seed", type=entry.whole(0), help="draw the hidden inputs from this number (default: another one each time)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where the judge exchanges numbers (auto: GPUs if there is one per rank)")
    parser.add_argument("--class", dest="folder", metavar="DIR", help="grade DIR/<student>/<exercise>.cpp for every student, into --csv")
    parser.add_argument("--csv", default="grades.csv", help="where the table of --class goes (default: grades.csv)")
    parser.add_argument("--build", default=str(catalog.ROOT / "build"), help="the build folder (default: build)")
    parser.add_argument("--desk", metavar="DIR", help="where your files are (default: build/challenge)")
    parser.add_argument("--prepare", action="store_true", help="write the learner's copies that are missing, and nothing else")
    return parser.parse_args()


def grade_class(options, exercises, judge):
    folder = pathlib.Path(options.folder)
    if not folder.is_dir():
        print(f"grade.sh: --class: {folder} is not a folder", file=sys.stderr)
        return 64
    print(f"Grading {folder} (seed {judge.seed}) into {options.csv}")
    if not classroom.grade_class(folder, exercises, judge, options.csv):
        print(f"grade.sh: --class: {folder} has no folders of students", file=sys.stderr)
        return 64
    return 0


def main():
    options = arguments()
    os.chdir(os.environ.get("MANYRANKS_CALLED_FROM", "."))  # the scripts run in the repository; paths are the caller's
    exercises = catalog.load()
    if options.list:
        show.listing(exercises)
        return 0
    try:
        picked = catalog.pick(options.exercise, exercises) or exercises
    except catalog.Unknown as unknown:
        print(f"grade.sh: {unknown}; the exercises are:", file=sys.stderr)
        for e in exercises:
            print(f"  {e.name:<20} {e.title}", file=sys.stderr)
        return 64
    toolchain = Toolchain(options.build)
    desk = skeleton.Desk(pathlib.Path(options.desk).resolve() if options.desk else toolchain.build / "challenge")
    if not toolchain.build.is_dir():
        print(f"grade.sh: there is no {toolchain.build} yet; run: ./scripts/setup.sh && cmake --preset default && cmake --build build --target challenge", file=sys.stderr)
        return 69
    try:
        notes = desk.prepare(exercises, [*toolchain.flags(), *(f"-I{e.folder}" for e in exercises)])
    except OSError as error:
        print(f"grade.sh: your files cannot be kept in {desk.folder}: {error.strerror}; try --desk DIR", file=sys.stderr)
        return 74
    for note in notes:
        print(f"note: {note}")
    if options.prepare:
        return 0
    try:
        toolchain.check()
    except NotBuilt as missing:
        print(f"grade.sh: {missing}", file=sys.stderr)
        return 69
    judge = court.Court(toolchain, options.seed, options.device)
    if options.folder:
        return grade_class(options, picked, judge)

    # Sources first: what a learner's program does to the folder while it runs changes nothing any more.
    progress = Progress(desk.folder / "progress.csv")
    sources = {e.name: desk.read(e) for e in picked}
    results = []
    for e in picked:
        text = sources[e.name]
        untouched = text == skeleton.learners_copy(e)
        if text is None or untouched and not options.exercise and not options.all:
            results.append(grading.without_points(e, "cannot be read" if text is None else "not started"))
            continue
        results.append(grading.grade(e, text, judge, desk.folder))
        if untouched:
            results[-1].status = "not started"
        show.details(results[-1], options.hint, judge.seed)
        sys.stdout.flush()
    show.table(results, progress)
    progress.add([r for r in results if r.status != "not started"], judge.seed)
    show.next_step(results, desk.folder, f" --desk {options.desk}" if options.desk else "")
    return 0 if all(r.status == "done" for r in results) else 1


if __name__ == "__main__":
    sys.exit(entry.run(main))
