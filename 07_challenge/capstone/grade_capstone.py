#!/usr/bin/env python3
"""Grades the capstone: your trainer against the reference, both measured in this run, by turns. Start it through ./scripts/grade.sh capstone.

  ./scripts/grade.sh capstone                              both tasks, 2 ranks
  ./scripts/grade.sh capstone --task gpt --ranks 4 --link 1gbit
  ./scripts/grade.sh capstone --quick                      a tiny target, one round: is it valid?

Score = the reference's median time to the target over yours: 1 is as fast as the reference. Your file is build/challenge/capstone/capstone.cpp.
Exit: 0 valid, 1 a finding, 64 usage, 69 not built yet or it cannot be judged here, 130 interrupted.
"""
import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import types

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(HERE.parent / "grader"), str(HERE)]
import entry  # noqa: E402
import leaderboard  # noqa: E402
import processes  # noqa: E402
import skeleton  # noqa: E402
from runs import CAPS, Finding, Judge, TARGETS, compare, new_seed  # noqa: E402

BUILD_SECONDS = 900


def arguments(words):
    parser = entry.Parser(prog="grade.sh capstone", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=tuple(CAPS), action="append", help="one of them (default: both)")
    parser.add_argument("--ranks", type=entry.whole(1), default=2)
    parser.add_argument("--link", metavar="RATE", help="two nodes joined by a link of this rate (1gbit, 350mbit); needs root")
    parser.add_argument("--rounds", type=entry.whole(1), default=3, help="of reference and learner, by turns")
    parser.add_argument("--memory-cap", type=entry.positive, metavar="MIB", help="another cap, MiB per rank; does not enter the leaderboard")
    parser.add_argument("--target", type=entry.positive, help="another target loss; does not enter the leaderboard")
    parser.add_argument("--name", default=os.environ.get("USER") or "me", help="for the leaderboard")
    parser.add_argument("--quick", action="store_true", help="a tiny target and one round; no leaderboard")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--program", type=pathlib.Path, help="grade this program instead of building your file")
    parser.add_argument("--timeout-s", type=entry.positive, help="of a run (default 300, quick 60)")
    parser.add_argument("--prepare", action="store_true", help="write your copy if it is not there, and nothing else")
    chosen = parser.parse_args(words)
    if chosen.link and chosen.ranks % 2:
        parser.error("--link: two nodes share the ranks evenly, so --ranks must be even")
    for task in chosen.task or CAPS:
        if not (chosen.memory_cap or chosen.quick or chosen.ranks in CAPS[task]):
            parser.error(f"no cap is set for {chosen.ranks} ranks: give one with --memory-cap")
    chosen.build = pathlib.Path(os.environ.get("MANYRANKS_CALLED_FROM", "."), chosen.build).resolve()
    if chosen.program:
        chosen.program = pathlib.Path(os.environ.get("MANYRANKS_CALLED_FROM", "."), chosen.program).resolve()
    return chosen


def prepare(build):
    exercise = types.SimpleNamespace(name="capstone", solution=(HERE / "solution.cpp").read_text(), contract="capstone/course.hpp. What you may use: everything in common/")
    desk = skeleton.Desk(build / "challenge" / "capstone")
    for note in desk.prepare([exercise]):
        print(f"note: {note}")
    return desk.file(exercise)


def build(folder, target):
    return processes.run(["cmake", "--build", str(folder), "--target", target], cwd=folder, seconds=BUILD_SECONDS, limits=processes.Limits(None, None))


def compile_mine(folder, mine):
    """Both of them, with what common/ is now: a reference of last week is none."""
    print(f"Building {mine}", flush=True)
    ended = build(folder, "ch07_capstone_reference")
    if ended.code or ended.timed_out:
        raise entry.Broken("the reference does not build: " + " ".join(ended.output.splitlines()[-3:])[:400])
    ended = build(folder, "ch07_capstone_mine")
    if ended.timed_out:
        raise Finding(f"it does not compile: the compiler was still busy after {BUILD_SECONDS} s")
    if ended.code:
        lines = ended.output.splitlines()
        raise Finding("it does not compile:\n  " + "\n  ".join(line[:300] for line in ([line for line in lines if "error" in line] or lines[-5:])[:5]))
    return folder / "07_challenge" / "capstone" / "capstone_mine"


def one_task(judge, task, program, chosen):
    with tempfile.TemporaryDirectory(prefix="manyranks-capstone-") as folder:
        pairs = compare(judge, task, program, 1 if chosen.quick else chosen.rounds, pathlib.Path(folder), new_seed())
    middle = lambda which, key: statistics.median(pair[which][key] for pair in pairs)  # noqa: E731
    seconds, reference = middle(1, "seconds"), middle(0, "seconds")
    score = reference / seconds
    print(f"{task}: score {score:.2f} (yours {seconds:.2f} s, reference {reference:.2f} s; medians of {len(pairs)})")
    if chosen.quick:
        print("  --quick: valid; a score of so short a run means nothing, and does not enter the leaderboard")
        return
    if chosen.memory_cap or chosen.target:
        print("  another cap or target than the others had: it does not enter the leaderboard")
        return
    board = chosen.build / "challenge" / "leaderboard.csv"
    leaderboard.enter(board, dict(name=chosen.name, task=task, ranks=chosen.ranks, link=chosen.link or "", cap_mib=judge.cap_mib(task), target=TARGETS[task], rounds=len(pairs), seconds=f"{seconds:.4f}",
                                  reference_seconds=f"{reference:.4f}", score=f"{score:.4f}", steps=int(middle(1, "steps")), held_out_loss=f"{middle(1, 'held_out'):.4f}",
                                  peak_mib=f"{max(pair[1]['peak_bytes'] for pair in pairs) / 2**20:.1f}"))
    print(f"  leaderboard: {board}, {leaderboard.draw(board) or 'no picture: matplotlib is missing'}")


def main(words=None):
    chosen = arguments(words)
    try:
        mine = prepare(chosen.build)
    except OSError as error:
        raise entry.Broken(f"your copy cannot be written below {chosen.build}: {error.strerror}") from None
    if chosen.prepare:
        return 0
    judge = Judge(chosen)
    if not judge.starter or not os.access(judge.reference, os.X_OK):
        print(f"grade.sh: {judge.reference} is not built: cmake --build {chosen.build} --target ch07_capstone_reference", file=sys.stderr)
        return 69
    if chosen.link and (why := judge.no_link()):
        print(f"Two nodes with a slow link cannot be made here ({why}). Graded WITHOUT the link limit.")
        chosen.link = None
    print(f"Capstone on {chosen.ranks} ranks" + (f", two nodes, {chosen.link} between them" if chosen.link else ", one node, no limit on the link")
          + (", on the CPU (CUDA memory is not counted yet, so that no cap would hold there)" if judge.starter.machine.gpus else "")
          + ("; more ranks than cores: times say little" if chosen.ranks > judge.starter.machine.cores else ""))
    failed, program = 0, chosen.program
    for task in chosen.task or CAPS:
        try:
            program = program or compile_mine(chosen.build, mine)
            one_task(judge, task, program, chosen)
        except Finding as finding:
            failed += 1
            print(f"{task}: score 0: {finding}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(entry.run(main))
