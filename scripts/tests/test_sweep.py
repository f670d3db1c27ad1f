"""sweep.py for real: mpirun starts stub programs; order, resuming, failures, time limits and Ctrl-C."""
import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import made_up
import launcher
import results
import stub_build
import sweepfile

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent


def plan(text):
    return f'name = "t"\nrepeats = 2\ntimeout_s = 60\n{text}'


def point(mode="good", ranks="[1]", program="03_data_parallel/bench_scaling", more=""):
    return f'[[points]]\nprogram = "{program}"\nranks = {ranks}\nflags = ["--mode", "{mode}"]\n{more}\n'


class Folder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.build = stub_build.make(self.folder / "build")
        self.results = self.folder / "results"
        self.log = self.folder / "log"

    def command(self, text, *flags):
        file = self.folder / "t.toml"
        file.write_text(plan(text))
        return [sys.executable, SCRIPTS / "sweep.py", file, "--build", self.build, "--results", self.results, *flags]

    def sweep(self, text, *flags, code=0):
        done = subprocess.run(self.command(text, *flags), env=stub_build.environment(MANYRANKS_STUB_LOG=str(self.log)), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def rows(self):
        rows, problems = results.read([self.results])
        self.assertEqual(problems, [])
        return rows

    def runs(self):
        """What rank 0 of each run wrote into the log, in order."""
        return [line.split() for line in self.log.read_text().splitlines() if line.startswith("0 ")]


@unittest.skipUnless(shutil.which("mpirun"), "no mpirun")
class Sweep(Folder):
    def test_rows_repeats_and_order(self):
        out = self.sweep(point("good") + point("other", more="repeats = 3"))
        self.assertEqual([run[2] for run in self.runs()], ["good", "other", "good", "other", "other"])  # interleaved
        self.assertTrue(all(run[3:] == ["threads=1", "omp=1"] for run in self.runs()))
        rows = self.rows()
        self.assertEqual(collections.Counter(row["repeat"] for row in rows), {1: 4, 2: 4, 3: 2})
        self.assertEqual({row.file.name for row in rows}, {"ch03_bench_scaling.csv"})
        self.assertIn("[5/5]", out)
        self.assertRegex(out, r"about \d+ s left")

    def test_ranks_and_oversubscription(self):
        out = self.sweep(point(ranks="[1, 2, 3, 999]", more=f"oversubscribe_to = {max(3, launcher.Machine().cores + 1)}\nrepeats = 1"))
        self.assertEqual({row["ranks"] for row in self.rows()}, {1, 2, 3})
        self.assertIn("left out   03_data_parallel/bench_scaling on 999 ranks", out)

    def test_a_finished_sweep_does_nothing_and_lost_rows_run_again(self):
        self.sweep(point())
        self.assertIn("0 runs to do", self.sweep(point()))
        self.assertEqual(len(self.runs()), 2)
        file = self.results / "ch03_bench_scaling.csv"
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[:-2]))  # the second run's two rows
        self.assertIn("1 runs to do", self.sweep(point()))
        self.assertEqual(len(self.runs()), 3)
        self.assertEqual(len(self.rows()), 4)

    def test_another_number_of_threads_is_another_measurement(self):
        self.sweep(point())
        self.assertIn("0 runs to do", self.sweep(point()))
        self.assertIn("2 runs to do", self.sweep("threads = 2\n" + point()))
        self.assertEqual([run[3] for run in self.runs()], ["threads=1"] * 2 + ["threads=2"] * 2)

    def test_half_a_journal_line_is_not_done(self):
        self.sweep(point(more="repeats = 1"))
        journal = self.results / "sweep.journal"
        journal.write_text(journal.read_text()[:-10])
        (self.results / "ch03_bench_scaling.csv").unlink()
        self.assertIn("sweep.journal:1: not a whole entry", self.sweep(point(more="repeats = 1")))

    def test_a_failure_is_shown_and_the_sweep_goes_on(self):
        out = self.sweep(point("fail") + point("good"), code=1)
        self.assertIn("FAILED: exit 3", out)
        self.assertIn("| the last words of a failing program", out)
        self.assertRegex(out, r"failed +03_data_parallel/bench_scaling np1 --mode fail \(repeat 1\): exit 3")
        self.assertEqual([run[2] for run in self.runs()], ["fail", "good", "good"])  # not tried twice
        self.assertEqual(len(self.rows()), 4)

    def test_wrong_rows_never_reach_the_results(self):
        out = self.sweep(point("nan") + point("silent"), code=1)
        self.assertIn("line 2: column median_s is nan", out)
        self.assertIn("wrote no row", out)
        self.assertEqual(list(self.results.glob("*.csv")), [])

    def test_skipped_is_not_failed(self):
        out = self.sweep(point("skip") + point("good"))
        self.assertRegex(out, r"skipped +03_data_parallel/bench_scaling np1 --mode skip: gpu: no CUDA device here")
        self.assertIn("0 failed, 1 skipped", out)

    def test_not_built_is_not_failed(self):
        out = self.sweep(point(program="04_model_parallel/bench_absent") + point(program="05_x/bench_*") + point())
        self.assertIn("0 failed, 0 skipped, 2 programs not built", out)
        self.assertIn("not built  04_model_parallel/bench_absent", out)
        self.assertIn("not built  05_x/bench_*", out)

    def test_pattern(self):
        self.assertIn("04_model_parallel/bench_modes", self.sweep(point(program="04_model_parallel/bench_*")))
        self.assertEqual(len(self.rows()), 4)

    def test_time_limit_leaves_no_process(self):
        out = self.sweep(point("hang", ranks="[2]", more="timeout_s = 2\nrepeats = 1") + point(), code=1)
        self.assertIn("still running after 2 s: ended", out)
        pids = [int(line.split()[1]) for line in self.log.read_text().splitlines() if " hang " in line]
        self.assertEqual(len(pids), 2)
        self.assertFalse(any(map(launcher.alive, pids)))
        self.assertEqual(len(self.rows()), 4)

    def stop(self, which):
        process = subprocess.Popen(self.command(point("good", more="repeats = 1") + point("hang", ranks="[2]", more="repeats = 1")),
                                   env=stub_build.environment(MANYRANKS_STUB_LOG=str(self.log)), stdout=subprocess.PIPE, text=True, start_new_session=True)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (self.log.exists() and self.log.read_text().count(" hang ") == 2):
            time.sleep(0.05)
        process.send_signal(which)
        out = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 130, out)
        self.assertIn("goes on from here", out)
        pids = [int(line.split()[1]) for line in self.log.read_text().splitlines() if " hang " in line]
        self.assertEqual(len(pids), 2)
        self.assertFalse(any(map(launcher.alive, pids)))
        self.assertEqual(len(self.rows()), 2)

    def test_ctrl_c_keeps_what_is_done(self):
        self.stop(signal.SIGINT)
        self.assertIn("1 runs to do", self.sweep(point("good", more="repeats = 1") + point("other", more="repeats = 1")))

    def test_the_batch_systems_signal_too(self):
        self.stop(signal.SIGTERM)

    def test_dry_run_lists_commands_and_runs_nothing(self):
        out = self.sweep(point(ranks="[2]"), "--dry-run")
        self.assertRegex(out, r"mpirun .*-np 2 \S+/03_data_parallel/bench_scaling --mode good --threads 1 --csv \S+/ch03_bench_scaling.csv")
        self.assertFalse(self.log.exists())

    def test_another_commit_is_refused_unless_told(self):
        self.sweep(point(more="repeats = 1"))
        other = point(more="repeats = 1").replace('"good"', '"good", "--commit", "another"')
        self.assertIn("would mix 2 commits", self.sweep(other, code=65))
        self.assertEqual({row["commit"] for row in self.rows()}, {made_up.COMMIT})
        self.sweep(other, "--allow-mixed")
        self.assertEqual(len({row["commit"] for row in self.rows()}), 2)
        self.assertIn("moved to", self.sweep(other, "--fresh"))
        self.assertEqual({row["commit"] for row in self.rows()}, {"another"})
        self.assertEqual(len(list(self.results.glob("old/*/ch03_bench_scaling.csv"))), 1)

    def test_another_sweep_in_the_folder_is_refused(self):
        self.sweep(point(more="repeats = 1"))
        journal = self.results / "sweep.journal"
        journal.write_text(json.dumps({**json.loads(journal.read_text()), "sweep": "someone_elses"}) + "\n")
        self.assertIn("someone_elses", self.sweep(point(), code=64))


class SweepFile(Folder):
    def load(self, text, slots=2):
        file = self.folder / "t.toml"
        file.write_text(text)
        return sweepfile.load(file, slots, self.build)

    def test_over_is_every_combination(self):
        loaded = self.load(plan('[[points]]\nprogram = "a/b"\nover = { model = ["mlp", "gpt"], batch = [1, 2] }'))
        self.assertEqual([point.flags for point in loaded.points], [["--model", m, "--batch", b] for m in ("mlp", "gpt") for b in "12"])

    def test_mistakes_are_named(self):
        for text, words in (("points = 3", "wrong type"), ("[[points]]\nprogramm = 'x'", "unknown key 'programm'"), ("[[points]]\nranks = [1]", "no 'program'"),
                            ("repeats = 0", "must be above 0"), ("x = ", "not TOML"), ("", "nothing to run"), ("[[points]]\nprogram = 'x'\nranks = [0]", "ranks 0"),
                            ("[[points]]\nprogram = 'x'\n[[points]]\nprogram = 'x'", "same point twice")):
            with self.subTest(text=text), self.assertRaises(sweepfile.Wrong) as raised:
                self.load(text)
            self.assertIn(words, str(raised.exception))

    def test_our_own_files(self):
        for name in ("quick", "full", "matrix"):
            self.assertEqual(sweepfile.load(SCRIPTS / "sweeps" / f"{name}.toml", 2, self.build).name, name)

    def test_the_matrix_is_one_model_and_one_global_batch(self):
        loaded = sweepfile.load(SCRIPTS / "sweeps" / "matrix.toml", 2, self.build)
        self.assertEqual(loaded.notes, [])  # two cores are enough for all of it
        self.assertEqual({point.ranks for point in loaded.points}, {2, 4})
        for point in loaded.points:
            with self.subTest(point=point.name()):
                flags = dict(zip(point.flags, point.flags[1:]))
                number = lambda name, default=1: int(flags.get(f"--{name}", default))  # noqa: B023, E731
                if point.program == "04_model_parallel/05_mesh":
                    self.assertEqual(number("dp") * number("tp"), point.ranks)
                    batch = number("dp") * number("batch")
                else:
                    self.assertEqual(point.program, "06_pipeline/07_train")
                    stages = number("stages", point.ranks // number("tensor"))
                    self.assertEqual(point.ranks % (stages * number("tensor")), 0)
                    batch = point.ranks // (stages * number("tensor")) * number("microbatches") * number("batch")
                self.assertEqual((batch, flags["--layers"], flags["--steps"]), (8, "4", "10"))
                self.assertFalse({"--width", "--heads", "--context", "--seed", "--rate", "--optimizer"} & set(flags))


class Launch(unittest.TestCase):
    def machine(self, **values):
        machine = launcher.Machine({})
        machine.__dict__.update(cores=2, gpus=0, slurm_tasks=0, root=False, open_mpi=True, **{})
        machine.__dict__.update(values)
        return machine

    def test_flags_only_where_needed(self):
        self.assertEqual(self.machine().command(2, ["p"]), ["mpirun", "-np", "2", "p"])
        self.assertEqual(self.machine(root=True).command(2, ["p"]), ["mpirun", "--allow-run-as-root", "-np", "2", "p"])
        self.assertEqual(self.machine().command(3, ["p"]), ["mpirun", "--oversubscribe", "-np", "3", "p"])
        self.assertEqual(self.machine(root=True, open_mpi=False).command(3, ["p"]), ["mpirun", "-np", "3", "p"])

    def test_slurm(self):
        with mock.patch("shutil.which", return_value="/usr/bin/srun"):
            machine = launcher.Machine({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8"})
        self.assertEqual(machine.slots(), 8)
        self.assertEqual(machine.command(4, ["p"]), ["srun", "-n", "4", "--mpi=pmix", "p"])

    def test_slots(self):
        self.assertEqual(self.machine().slots(), 2)
        self.assertEqual(self.machine(gpus=8).slots(), 8)

    def test_a_job_that_ignores_the_first_signal_is_killed(self):
        process = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"],
                                   stdout=subprocess.PIPE)
        process.stdout.readline()
        launcher.end(process, patience=0.3)
        process.stdout.close()
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertFalse(os.path.exists(f"/proc/{process.pid}"))


if __name__ == "__main__":
    unittest.main()
