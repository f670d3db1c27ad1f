"""results.py: sound rows are read with their types; everything else is named with file and line, and the rest still comes."""
import pathlib
import tempfile
import unittest

import made_up
import results


class Reader(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def read(self, rows):
        return results.read([made_up.write(self.folder / "x.csv", rows)])

    def problem(self, text):
        file = self.folder / "bad.csv"
        file.write_text(text)
        rows, problems = results.read([file])
        self.assertEqual(len(problems), 1, problems)
        self.assertEqual(problems[0].file, file)
        return rows, problems[0]

    def test_types(self):
        rows, problems = self.read([made_up.row(ranks=4, median_s=0.5, oversubscribed="true", batch="", workload="gpt p=2 m=8")])
        self.assertEqual(problems, [])
        self.assertEqual((rows[0]["ranks"], rows[0]["median_s"], rows[0]["oversubscribed"], rows[0]["batch"]), (4, 0.5, True, None))
        self.assertEqual((rows[0].parameter("m"), rows[0].parameter("p"), rows[0].parameter("v")), (8, 2, None))
        self.assertEqual(rows[0].line, 2)

    def test_each_bad_cell_is_named_and_the_other_rows_come(self):
        for cells, words in (({"median_s": "nan"}, "median_s is nan"), ({"loss": "inf"}, "loss is inf"), ({"ranks": "two"}, "ranks is 'two'"),
                             ({"ranks": "0"}, "ranks is 0"), ({"kind": "guessed"}, "kind is 'guessed'"), ({"commit": ""}, "commit is empty"),
                             ({"oversubscribed": "maybe"}, "oversubscribed is 'maybe'"), ({"bytes": "-4"}, "bytes is -4"),
                             ({"scaling": "sideways"}, "scaling is 'sideways'"), ({"date": "yesterday"}, "date is 'yesterday'"), ({"date": "2025-02-30T12:00:00Z"}, "date is '2025-02-30"),
                             ({"date": ""}, "date is empty")):
            with self.subTest(cells=cells):
                rows, problems = self.read([made_up.row(), made_up.row(**cells), made_up.row()])
                self.assertEqual(len(rows), 2)
                self.assertEqual([problem.line for problem in problems], [3])
                self.assertIn(words, str(problems[0]))
                self.assertIn("x.csv:3:", str(problems[0]))

    def test_empty_file(self):
        rows, problem = self.problem("")
        self.assertEqual((rows, problem.line), ([], 1))
        self.assertIn("empty file", problem.text)

    def test_header_alone(self):
        self.assertIn("no rows", self.problem(",".join(results.COLUMNS) + "\n")[1].text)

    def test_missing_column(self):
        self.assertIn("busbw_GBs is missing", self.problem(",".join(name for name in results.COLUMNS if name != "busbw_GBs") + "\n")[1].text)

    def test_columns_in_another_order(self):
        swapped = ["lesson", "chapter", *results.COLUMNS[2:]]
        self.assertIn("lesson stands where chapter belongs", self.problem(",".join(swapped) + "\n")[1].text)

    def test_unknown_column(self):
        self.assertIn("unknown column speed", self.problem(",".join(["speed", *results.COLUMNS]) + "\n")[1].text)

    def test_a_new_column_before_run_id_is_welcome(self):
        header = list(results.COLUMNS)
        header.insert(header.index("run_id"), "energy_J")
        cells = [made_up.row().get(name, "5") for name in header]
        rows, problems = results.read_text(",".join(header) + "\n" + ",".join(map(str, cells)) + "\n", "x.csv")
        self.assertEqual((len(rows), problems), (1, []))

    def test_mixed_columns(self):
        good = made_up.write(self.folder / "good.csv", [made_up.row()]).read_text()
        rows, problem = self.problem(good + "a,b,c\n")
        self.assertEqual((len(rows), problem.line), (1, 3))
        self.assertIn("3 cells where the header has 45", problem.text)
        self.assertIn("glued together", self.problem(good + good)[1].text)

    def test_broken_quoting_and_binary(self):
        good = made_up.write(self.folder / "good.csv", [made_up.row()]).read_text()
        self.assertIn("not CSV", self.problem(good + '"never closed,1,2\n')[1].text)
        (self.folder / "bad.csv").write_bytes(b"\xff\xfe\x00")
        self.assertIn("cannot be read", str(results.read([self.folder / "bad.csv"])[1][0]))

    def test_a_monitors_file_in_the_folder_is_not_taken_for_results(self):
        made_up.monitor(self.folder / "monitor.csv")
        made_up.write(self.folder / "x.csv", [made_up.row()])
        rows, problems = results.read([self.folder])
        self.assertEqual((len(rows), problems), (1, []))
        self.assertEqual(len(results.read([self.folder / "monitor.csv"])[1]), 1)  # but who names it as one is told

    def test_folder_without_files_and_missing_file(self):
        self.assertIn("no *.csv", str(results.read([self.folder])[1][0]))
        self.assertIn("cannot be read", str(results.read([self.folder / "none.csv"])[1][0]))

    def test_mixture(self):
        rows = lambda **cells: self.read([made_up.row(), made_up.row(**cells)])[0]  # noqa: E731
        self.assertIsNone(results.mixture(rows()))
        self.assertIn("2 commits", results.mixture(rows(commit="other")))
        self.assertIn("2 hosts", results.mixture(rows(host="other")))
        self.assertIn("dirty", results.mixture(rows(dirty="true")))

    def test_summary(self):
        point = results.summary([3.0, 1.0, 2.0, 10.0])
        self.assertEqual((point.median, point.low, point.high, point.n), (2.5, 1.0, 10.0, 4))


if __name__ == "__main__":
    unittest.main()
