"""skipped.py: counts and reasons, from the JUnit file that ctest writes."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "skipped.py"
JUNIT = """<?xml version="1.0"?><testsuite name="x" tests="5">
<testcase name="a" status="run"><system-out>fine</system-out></testcase>
<testcase name="b" status="fail"><failure message=""/><system-out>bad</system-out></testcase>
<testcase name="c" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>manyranks: skipped (gpu): no CUDA device on here</system-out></testcase>
<testcase name="d" status="notrun"><skipped message="x"/><system-out>silent</system-out></testcase>
<testcase name="e" status="notrun"><skipped message="x"/><system-out>manyranks: skipped (gpu): no CUDA device on here</system-out></testcase>
</testsuite>"""


def run(text):
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
        file.write(text)
        file.flush()
        return subprocess.run([sys.executable, SCRIPT, file.name], text=True, capture_output=True)


class Skipped(unittest.TestCase):
    def test_table(self):
        out = run(JUNIT).stdout
        self.assertIn("1 passed, 1 failed, 3 skipped", out)
        self.assertRegex(out, r"gpu\s+no CUDA device on here  \(2 tests\)\n\s+c e\n")
        self.assertRegex(out, r"\?\s+no reason given.*\(1 test\)\n\s+d\n")

    def test_broken_file(self):
        self.assertNotEqual(run("<testsuite>").returncode, 0)


if __name__ == "__main__":
    unittest.main()
