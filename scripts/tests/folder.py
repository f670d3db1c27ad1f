"""A test with a folder of its own, and rows read from a file in it as a program would have written them."""

import pathlib
import tempfile
import unittest

import made_up
import results


class Folder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def rows(self, rows):
        read, problems = results.read([made_up.write(self.folder / "x.csv", rows)])
        self.assertEqual(problems, [])
        return read
