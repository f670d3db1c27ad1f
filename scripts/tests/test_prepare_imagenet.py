"""prepare_imagenet.py on small archives of the official shape, made here; and our C++ reader on what it writes."""
import contextlib
import io
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import prepare_imagenet  # noqa: E402

PROBE = os.environ.get("MANYRANKS_DATA_PROBE")
CORPUS = Path(__file__).resolve().parents[2] / "common/data/fuzz/corpus/jpeg"
JPEGS = [path.read_bytes() for path in sorted(CORPUS.glob("*.jpg"))]
CLASSES = ["n01", "n02", "n03"]
LABELS = [2, 1, 3, 3, 1]  # of the validation images, as ILSVRC2012_ID
# The official numbering is not the alphabetical one: the test's is not either.
NUMBER = {1: "n02", 2: "n01", 3: "n03"}


def element(kind, payload):
    return struct.pack("<II", kind, len(payload)) + payload + b"\0" * (-len(payload) % 8)


def small(kind, payload):
    return struct.pack("<HH", kind, len(payload)) + payload.ljust(4, b"\0")


def matrix(array_class, data, name=b"", dims=(1, 1)):
    return element(14, element(6, struct.pack("<II", array_class, 0)) + element(5, struct.pack("<ii", *dims)) + element(1, name) + data)


def meta_mat():
    """A MATLAB 5 file as the devkit's: a compressed struct array, numbers in the smallest type, one inner node."""
    names = [b"ILSVRC2012_ID", b"WNID", b"words", b"num_children"]
    body = small(5, struct.pack("<i", 14)) + element(1, b"".join(n.ljust(14, b"\0") for n in names))
    for number, wnid, children in [*((n, w, 0) for n, w in NUMBER.items()), (4, "n99", 2)]:
        body += matrix(6, small(2, struct.pack("<B", number)))
        body += matrix(4, element(4, wnid.encode("utf-16-le")), dims=(1, len(wnid)))
        body += matrix(4, element(16, b"a word, another"), dims=(1, 15))
        body += matrix(6, small(2, struct.pack("<B", children)))
    packed = zlib.compress(matrix(2, body, b"synsets", (len(NUMBER) + 1, 1)))
    return b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM" + struct.pack("<II", 15, len(packed)) + packed


def add(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def make_archives(folder, per_class=4):
    with tarfile.open(folder / "train.tar", "w") as outer:
        for c, wnid in enumerate(CLASSES):
            inner_bytes = io.BytesIO()
            with tarfile.open(fileobj=inner_bytes, mode="w") as inner:
                for i in range(per_class):
                    add(inner, f"{wnid}_{i}.JPEG", JPEGS[(c + i) % len(JPEGS)])
            add(outer, f"{wnid}.tar", inner_bytes.getvalue())
    with tarfile.open(folder / "val.tar", "w") as archive:
        for i in range(len(LABELS)):
            add(archive, f"ILSVRC2012_val_{i + 1:08}.JPEG", JPEGS[i % len(JPEGS)])
    with tarfile.open(folder / "devkit.tar.gz", "w:gz") as archive:
        add(archive, "ILSVRC2012_devkit_t12/data/meta.mat", meta_mat())
        add(archive, "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", "\n".join(map(str, LABELS)).encode())


class Case(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.dir = Path(holder.name)
        self.root = self.dir / "imagenet"
        make_archives(self.dir)

    def run_it(self, *arguments):
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            code = prepare_imagenet.main([str(a) for a in arguments])
        return code, text.getvalue()

    def extract(self, *more):
        return self.run_it("extract", "--train", self.dir / "train.tar", "--val", self.dir / "val.tar",
                           "--devkit", self.dir / "devkit.tar.gz", "--to", self.root, "--no-md5", *more)


class Extract(Case):
    def test_class_folders(self):
        code, text = self.extract()
        self.assertEqual(code, 0, text)
        self.assertEqual(sorted(p.name for p in (self.root / "train").iterdir()), CLASSES)
        self.assertEqual(len(list((self.root / "train").glob("*/*.JPEG"))), 12)
        for i, label in enumerate(LABELS):
            path = self.root / "val" / NUMBER[label] / f"ILSVRC2012_val_{i + 1:08}.JPEG"
            self.assertEqual(path.read_bytes(), JPEGS[i % len(JPEGS)])
        self.assertEqual(self.run_it("verify", "--to", self.root)[0], 0)

    def test_resumes_after_a_break(self):
        real, count = prepare_imagenet.write_atomically, 0

        def breaks(path, data):
            nonlocal count
            count += path.suffix == ".JPEG"
            if count == 9:
                path.with_name(path.name + ".part").write_bytes(data[:5])
                raise KeyboardInterrupt
            real(path, data)

        prepare_imagenet.write_atomically = breaks
        try:
            with self.assertRaises(KeyboardInterrupt):
                self.extract()
        finally:
            prepare_imagenet.write_atomically = real
        before = {p: p.stat().st_mtime_ns for p in self.root.glob("*/*/*.JPEG")}
        self.assertEqual(len(before), 8)
        with open(self.root / "train.list", "a") as file:
            file.write("0123 half a li")  # as a break in the middle of a line leaves it
        code, text = self.extract()
        self.assertEqual(code, 0, text)
        for path, when in before.items():
            self.assertEqual(path.stat().st_mtime_ns, when, f"{path} was written again")
        self.assertEqual(self.run_it("verify", "--to", self.root)[0], 0)
        self.assertEqual(list(self.root.rglob("*.part")), [])

    def test_verify_sees_every_damage(self):
        self.extract()
        victim = self.root / "train/n02/n02_1.JPEG"
        good = victim.read_bytes()
        for damage, word in [(lambda: victim.write_bytes(good[:-1] + b"x"), "SHA-256"), (lambda: victim.write_bytes(good[:-1]), "bytes"),
                             (victim.unlink, "missing"), (lambda: (victim.parent / "extra.JPEG").write_bytes(good), "not in the list")]:
            damage()
            code, text = self.run_it("verify", "--to", self.root)
            self.assertEqual(code, 65, text)
            self.assertIn(word, text)
            self.assertIn("n02", text)
            if word == "missing":
                victim.write_bytes(good)

    def test_damaged_archives(self):
        whole = (self.dir / "train.tar").read_bytes()
        (self.dir / "train.tar").write_bytes(whole[: len(whole) // 2])
        code, text = self.extract()
        self.assertEqual(code, 65, text)
        (self.dir / "train.tar").unlink()
        code, text = self.extract()
        self.assertEqual(code, 74, text)
        self.assertIn("train.tar", text)

    def test_official_md5_is_demanded(self):
        code, text = self.run_it("extract", "--train", self.dir / "train.tar", "--val", self.dir / "val.tar",
                                 "--devkit", self.dir / "devkit.tar.gz", "--to", self.root)
        self.assertEqual(code, 65)
        self.assertIn("1d675b47d978889d74fa0da5fadfb00e", text)

    def test_labels_that_do_not_fit(self):
        with tarfile.open(self.dir / "devkit.tar.gz", "w:gz") as archive:
            add(archive, "d/data/meta.mat", meta_mat())
            add(archive, "d/data/ILSVRC2012_validation_ground_truth.txt", b"1\n7\n")
        code, text = self.extract()
        self.assertEqual(code, 65)
        self.assertIn("line 2: class 7", text)
        with tarfile.open(self.dir / "devkit.tar.gz", "w:gz") as archive:
            add(archive, "d/data/meta.mat", meta_mat()[:200])
            add(archive, "d/data/ILSVRC2012_validation_ground_truth.txt", b"1\n")
        self.assertEqual(self.extract()[0], 65)

    def test_missing_class(self):
        with tarfile.open(self.dir / "train.tar", "w") as outer:
            add(outer, "n01.tar", (self.dir / "val.tar").read_bytes())
        code, text = self.extract()
        self.assertEqual(code, 65)
        self.assertIn("n02", text)

    def test_usage(self):
        self.assertEqual(self.run_it("extract")[0], 64)
        self.assertEqual(self.run_it("shard", "--from", self.root)[0], 64)


class Shard(Case):
    def setUp(self):
        super().setUp()
        self.extract()
        self.out = self.dir / "shards"

    def shard(self, *more):
        return self.run_it("shard", "--from", self.root, "--to", self.out, "--shard-mb", "0.003", *more)

    def test_resumes_and_repeats(self):
        code, text = self.shard()
        self.assertEqual(code, 0, text)
        files = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in self.out.iterdir()}
        self.assertGreater(len(files), 2)
        self.assertEqual(self.shard()[0], 0)
        for path in self.out.iterdir():
            self.assertEqual(path.stat().st_mtime_ns, files[path.name][1])
        cut = self.out / "train-00001.shard"
        cut.write_bytes(cut.read_bytes()[:-1])
        self.assertEqual(self.shard()[0], 0)
        self.assertEqual({p.name: p.read_bytes() for p in self.out.iterdir()}, {n: b for n, (b, _) in files.items()})

    def test_bad_folders(self):
        (self.root / "val/n02/ILSVRC2012_val_00000002.JPEG").write_bytes(b"no jpeg")
        code, text = self.shard()
        self.assertEqual(code, 65)
        self.assertIn("ILSVRC2012_val_00000002.JPEG", text)
        for path in (self.root / "val/n03").iterdir():
            path.unlink()
        self.assertIn("no JPEG file", self.shard()[1])
        (self.root / "val/n03").rmdir()
        self.assertIn("n03: this class folder is missing", self.shard()[1])

    @unittest.skipUnless(PROBE, "MANYRANKS_DATA_PROBE is not set")
    def test_reader_sees_the_same_samples(self):
        self.assertEqual(self.shard()[0], 0)
        for split in ("train", "test"):
            seen = []
            for folder, what in ((self.root, "ImageFolder"), (self.out, "shard file")):
                run = subprocess.run([PROBE, folder, split, "16", "crop"], capture_output=True, text=True, check=True)
                lines = run.stdout.splitlines()
                self.assertIn(what, lines[0])
                seen.append(sorted(line.split(" ", 1)[1] for line in lines[1:]))
            self.assertEqual(seen[0], seen[1])
            self.assertEqual(len(seen[0]), 12 if split == "train" else 5)

    @unittest.skipUnless(PROBE, "MANYRANKS_DATA_PROBE is not set")
    def test_reader_ends_with_65(self):
        (self.root / "train/n01/n01_0.JPEG").write_bytes(JPEGS[0][:-40])
        run = subprocess.run([PROBE, self.root, "train", "16", "crop"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 65)
        self.assertIn("n01_0.JPEG: at byte ", run.stderr)


if __name__ == "__main__":
    unittest.main()
