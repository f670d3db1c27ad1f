"""A stand-in for a benchmark: appends rows of made-up test data on rank 0, or misbehaves as its flags ask.

The tests copy it to the place of a program in a build folder of their own.
"""
import os
import pathlib
import sys
import time
import uuid

sys.path.insert(0, os.environ["MANYRANKS_STUB_PATH"])
import made_up  # noqa: E402


def main(words):
    flags = dict(zip(words, words[1:]))
    mode, csv = flags.get("--mode", "good"), flags.get("--csv")
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
    ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))
    if log := os.environ.get("MANYRANKS_STUB_LOG"):
        with open(log, "a") as file:
            file.write(f"{rank} {os.getpid()} {mode} threads={flags['--threads']} omp={os.environ['OMP_NUM_THREADS']}\n")
    if mode == "hang":
        time.sleep(600)
    if mode == "fail":
        print("the last words of a failing program", file=sys.stderr)
        return 3
    if mode == "skip":
        print("manyranks: skipped (gpu): no CUDA device here", file=sys.stderr)
        return 77
    if rank == 0 and mode != "silent" and csv:
        rows = made_up.everything_small(pathlib.Path(sys.argv[0]).name, ranks)
        run_id = uuid.uuid4().hex
        for row in rows:
            row.update(run_id=run_id, repeat="", **({"median_s": "nan"} if mode == "nan" else {}), **({"commit": flags["--commit"]} if "--commit" in flags else {}))
        made_up.write(csv, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
