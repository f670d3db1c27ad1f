"""Every kind of bad data ends a program with exit 65 and one line that names the file and the byte: never a crash, never a run on
invented pixels, never an allocation larger than the file implies (the reader runs with 256 MB of address space)."""
import gzip
import os
import pathlib
import resource
import struct
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["MANYRANKS_BUILD"])
PROBE, BASELINE, LOADER = BUILD / "common/data/data_probe", BUILD / "01_single_gpu/01_baseline", BUILD / "01_single_gpu/bench_loader"

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
GOOD_IMAGES = struct.pack(">IIII", 0x803, 3, 4, 5) + bytes(60)
GOOD_LABELS = struct.pack(">II", 0x801, 3) + bytes([1, 0, 9])
RECORD = bytes([3]) + bytes(3072)


def jpeg():
    """A good JPEG file, made by our own encoder."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([LOADER, "make", folder, "1"], check=True)
        return next(pathlib.Path(folder).rglob("*.jpg")).read_bytes()


class BadData(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def write(self, name, data):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def expect(self, file, *words, split="train"):
        """data_probe reads all of the folder: exit 65, one line, and in it the file and these words."""
        def small():
            resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))
        result = subprocess.run([PROBE, self.folder, split, "32", "crop"], capture_output=True, text=True, preexec_fn=small, timeout=60)
        lines = result.stderr.strip().splitlines()
        self.assertEqual(result.returncode, 65, result.stderr)
        self.assertEqual(len(lines), 1, result.stderr)
        for word in (str(file), *words):
            self.assertIn(word, lines[0])

    def idx(self, images, labels, *words, bad=IMAGES):
        self.write(IMAGES, images), self.write(LABELS, labels)
        self.expect(self.folder / bad, *words)

    def test_idx(self):
        self.idx(b"", GOOD_LABELS, "at byte 0")
        self.idx(GOOD_IMAGES[:10], GOOD_LABELS, "at byte 10")
        self.idx(GOOD_IMAGES[:-1], GOOD_LABELS, "at byte 75")
        self.idx(GOOD_IMAGES + b"x", GOOD_LABELS, "at byte 76")
        self.idx(b"\x89PNG" + GOOD_IMAGES[4:], GOOD_LABELS, "at byte 0", "no IDX")
        self.idx(struct.pack(">IIII", 0x803, 0xffffffff, 0xffff, 0xffff), GOOD_LABELS, "at byte 16")  # claims 18 exabytes
        self.idx(struct.pack(">IIII", 0x803, 1 << 20, 64, 64) + bytes(60), GOOD_LABELS, "at byte 76")  # claims 4 GB
        self.idx(GOOD_IMAGES, GOOD_LABELS[:-1] + bytes([10]), "at byte 10", "label 10", bad=LABELS)
        self.idx(GOOD_IMAGES, struct.pack(">II", 0x801, 2) + bytes([1, 0]), "2 labels for the 3 images", bad=LABELS)

    def test_idx_gzip(self):
        packed = gzip.compress(GOOD_IMAGES)
        self.write(LABELS, GOOD_LABELS)
        for data in (packed[:-4], packed[:20], packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:]):
            self.expect(self.write(IMAGES + ".gz", data), "gzip")
        self.expect(self.write(IMAGES + ".gz", gzip.compress(struct.pack(">IIII", 0x803, 1 << 20, 64, 64))), "at byte")  # a bomb's claim

    def test_cifar(self):
        for name in range(2, 6):
            self.write(f"data_batch_{name}.bin", RECORD)
        first = "data_batch_1.bin"
        self.expect(self.write(first, b""), "at byte 0")
        self.expect(self.write(first, RECORD + RECORD[:-1]), "at byte 3073")
        self.expect(self.write(first, RECORD + bytes([10]) + RECORD[1:]), "at byte 3073", "label 10")
        (self.folder / first).unlink()
        (self.folder / "data_batch_3.bin").unlink()
        self.write(first, RECORD)
        self.expect(self.folder / "data_batch_3.bin", "No such file")

    def test_image_folder(self):
        good = jpeg()
        self.write("train/cat/0.jpg", good)
        for data, words in ((b"", ["at byte 0", "empty"]), (b"GIF89a" + good[6:], ["at byte 0", "no JPEG"]), (good[: len(good) // 2], ["at byte"]),
                            (good[:100], ["at byte"]), (good[:-2], ["at byte"])):
            self.expect(self.write("train/dog/1.jpg", data), *words)
        # A header that claims 65500 x 65500 pixels: 12 GB as RGB.
        start = good.index(b"\xff\xc0")
        self.expect(self.write("train/dog/1.jpg", good[: start + 5] + struct.pack(">HH", 65500, 65500) + good[start + 9:]), "at byte", "more than")

    def test_folders(self):
        good = jpeg()
        for name in ("train/cat/0.jpg", "train/dog/1.jpg", "val/cat/2.jpg"):
            self.write(name, good)
        self.expect(self.folder / "val/dog", "missing", split="test")
        (self.folder / "val/dog").mkdir()
        self.expect(self.folder / "val/dog", "no JPEG file", split="test")
        (self.folder / "train/dog/1.jpg").unlink()
        (self.folder / "train/dog/1.jpg").symlink_to("nowhere")
        self.expect(self.folder / "train/dog/1.jpg", "No such file")

    def test_unreadable(self):
        good = jpeg()
        self.write("train/cat/0.jpg", good)
        (self.folder / "train/cat/1.jpg").mkdir()  # root may read any file, but nobody reads a folder as one
        self.expect(self.folder / "train/cat/1.jpg", "Is a directory")
        if os.getuid() != 0:
            (self.folder / "train/cat/1.jpg").rmdir()
            self.write("train/cat/1.jpg", good).chmod(0)
            self.expect(self.folder / "train/cat/1.jpg", "Permission denied")

    def test_unknown(self):
        self.write("notes.txt", b"nothing here")
        self.expect(self.folder, "nothing known")

    def test_a_lesson_ends_the_same_way(self):
        """The error of a loader's thread reaches main(), which prints the line and gives the exit code."""
        good = jpeg()
        for number in range(8):
            self.write(f"train/cat/{number}.jpg", good)
        bad = self.write("train/cat/8.jpg", good[: len(good) // 2])
        result = subprocess.run([BASELINE, "--quick", "--data", self.folder], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 65, result.stderr)
        self.assertIn(f"{bad}: at byte", result.stderr)


if __name__ == "__main__":
    unittest.main()
