"""What the grader's tests share: the grader on the path, the build folder from the environment, a batch of answers judged in few starts."""
import concurrent.futures
import os
import pathlib
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent.parent
sys.path.insert(0, str(TESTS.parent / "grader"))
sys.dont_write_bytecode = True
import catalog  # noqa: E402
import court  # noqa: E402
import grading  # noqa: E402
from toolchain import Toolchain  # noqa: E402

BUILD = pathlib.Path(os.environ.get("MANYRANKS_BUILD", ROOT / "build"))
SEED = int(os.environ.get("MANYRANKS_GRADE_SEED", "20261117"))


def new_court(seed=SEED):
    toolchain = Toolchain(BUILD)
    toolchain.check()
    return court.Court(toolchain, seed, device="cpu")


def judge_batch(answers, ranks_of=lambda label: grading.RANKS):
    """answers: {label: (exercise, text)} -> {label: Result}. Compiled two at a time; one start per number of ranks runs all of them."""
    judge = new_court()
    with tempfile.TemporaryDirectory() as folder:
        def compile_one(item):
            (label, (exercise, text)), number = item
            room = pathlib.Path(folder) / str(number)
            room.mkdir()
            source = room / f"{exercise.name}.cpp"
            source.write_text(text)
            library = room / f"{exercise.name}.so"
            return label, library, judge.toolchain.compile(exercise, source, library)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            compiled = list(pool.map(compile_one, zip(answers.items(), range(len(answers)))))
        for label, _, said in compiled:
            assert said is None, f"{label} does not compile:\n{said}"
        libraries = {label: library for label, library, _ in compiled}
        runs = {label: [] for label in answers}
        for ranks in grading.RANKS:
            labels = [label for label in answers if ranks in ranks_of(label)]
            jobs = [(answers[label][0].name, libraries[label]) for label in labels]
            for label, run in zip(labels, judge.judge(jobs, ranks), strict=True):
                runs[label].append(run)
    return {label: grading.judge_runs(answers[label][0], runs[label]) for label in answers}
