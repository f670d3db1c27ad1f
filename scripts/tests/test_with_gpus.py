"""with_gpus.sh: who gets which GPU, what is a skip, and when a skip is a failure. No GPU is needed: only the script's decisions are tested."""
import os
import pathlib
import subprocess
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "common" / "cmake" / "with_gpus.sh"


def run(wanted, need, **environment):
    kept = {"PATH": os.environ["PATH"]}
    return subprocess.run([SCRIPT, str(wanted), need, "sh", "-c", 'echo "gpus $CUDA_VISIBLE_DEVICES"; exit 3'],
                          text=True, capture_output=True, env=kept | environment)


class WithGpus(unittest.TestCase):
    def test_those_that_ctest_hands_out(self):
        done = run(2, "nccl", CTEST_RESOURCE_GROUP_COUNT="2", CTEST_RESOURCE_GROUP_0_GPUS="id:3,slots:1",
                   CTEST_RESOURCE_GROUP_1_GPUS="id:1,slots:1", CUDA_VISIBLE_DEVICES="")
        self.assertEqual((done.returncode, done.stdout), (3, "gpus 3,1\n"))

    def test_those_that_are_visible(self):
        self.assertEqual(run(2, "nccl", CUDA_VISIBLE_DEVICES="4,5").returncode, 3)

    def test_more_ranks_than_gpus_is_a_skip_with_its_reason(self):
        done = run(3, "nccl", CUDA_VISIBLE_DEVICES="4,5")
        self.assertEqual(done.returncode, 77)
        self.assertIn("skipped (nccl): 3 rank(s) need as many GPUs, and 2 can be used here", done.stdout)

    def test_a_required_one_is_a_failure(self):
        for need, required in (("nccl", "multinode,nccl"), ("gpu", "gpu"), ("nccl", "gpu")):
            done = run(1, need, CUDA_VISIBLE_DEVICES="", MANYRANKS_REQUIRE=required)
            self.assertEqual(done.returncode, 1, (need, required))
            self.assertIn("MANYRANKS_REQUIRE forbids this skip", done.stderr)
        self.assertEqual(run(1, "gpu", CUDA_VISIBLE_DEVICES="", MANYRANKS_REQUIRE="nccl").returncode, 77)


if __name__ == "__main__":
    unittest.main()
