#!/usr/bin/env python3
"""ImageNet (ILSVRC 2012) from its official archives to class folders, and from those to shard files.

    scripts/prepare_imagenet.py extract --train ILSVRC2012_img_train.tar --val ILSVRC2012_img_val.tar \\
                                        --devkit ILSVRC2012_devkit_t12.tar.gz --to imagenet
    scripts/prepare_imagenet.py verify  --to imagenet
    scripts/prepare_imagenet.py shard   --from imagenet --to imagenet_shards [--shard-mb 1024]

extract  imagenet/train/n01440764/*.JPEG (one inner archive per class) and imagenet/val/n01440764/*.JPEG (the devkit
         says which class each validation image is of). Each archive is checked against its published MD5 first.
         Run again after a break: what is listed as done is not touched. A list of all files with size and SHA-256 is
         kept in imagenet/train.list and imagenet/val.list.
verify   counts every file and checks it against the lists.
shard    a cluster's file system hates a million small files: a few large ones instead (format: common/data/shards.hpp),
         train-00000.shard ... shuffled once with --seed, val-00000.shard ...; resumable, shard by shard.

Exit: 0 good, 64 usage, 65 an archive or a file is not what it should be, 74 reading or writing failed.
"""
import argparse
import contextlib
import hashlib
import io
import os
import random
import struct
import sys
import tarfile
import time
import zlib
from pathlib import Path

OFFICIAL_MD5 = {
    "train": "1d675b47d978889d74fa0da5fadfb00e",
    "val": "29b22e2961454d5413ddabcf34fc5622",
    "devkit": "fa75699e90414af021442c21a62c3abf",
}
OFFICIAL_COUNT = {"classes": 1000, "train": 1281167, "val": 50000}
CHUNK = 1 << 20


class BadData(Exception):
    pass


class Progress:
    """A line that rewrites itself on a terminal, one line every 30 s in a log."""

    def __init__(self, what, total):
        self.what, self.total, self.done, self.start, self.shown = what, total, 0, time.monotonic(), time.monotonic()

    def step(self, count=1):
        self.done += count
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if now - self.shown > (0.2 if terminal else 30):
            self.shown = now
            rate = self.done / max(1e-9, now - self.start)
            left = f", {(self.total - self.done) / rate:.0f} s left" if self.total else ""
            print(f"{chr(13) if terminal else ''}{self.what}: {self.done} of {self.total or '?'}, {rate:.0f}/s{left}   ",
                  end="" if terminal else "\n", file=sys.stderr, flush=True)

    def close(self):
        if sys.stderr.isatty():
            print(file=sys.stderr)


def check_md5(path, wanted):
    progress, value = Progress(f"checking {path.name} (MB)", path.stat().st_size // CHUNK), hashlib.md5()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            value.update(chunk)
            progress.step()
    progress.close()
    if value.hexdigest() != wanted:
        raise BadData(f"{path}: MD5 {value.hexdigest()}, {wanted} expected: the archive is damaged; fetch it again")


def write_atomically(path, data):
    """Whole or not at all, so that a break leaves nothing that looks finished."""
    partial = path.with_name(path.name + ".part")
    with open(partial, "wb") as out:
        out.write(data)
    os.replace(partial, path)


# --- the lists: what has been written, one line a file: "sha256 size class/name" ---------------------------------------
def read_list(path):
    files = {}
    if path.exists():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            parts = line.split(" ", 2)
            if len(parts) != 3 or len(parts[0]) != 64 or not parts[1].isdigit():
                if number == len(path.read_text().splitlines()):
                    break  # the line that a break cut off
                raise BadData(f"{path}: line {number} is no 'sha256 size name'")
            files[parts[2]] = (parts[0], int(parts[1]))
    return files


class ListWriter:
    def __init__(self, path):
        self.known = read_list(path)
        # Written anew without a line that a break cut off, then appended to.
        write_atomically(path, "".join(f"{sha} {size} {name}\n" for name, (sha, size) in self.known.items()).encode())
        self.file = open(path, "a")

    def done(self, name, size, target):
        entry = self.known.get(name)
        return entry is not None and entry[1] == size and target.exists() and target.stat().st_size == size

    def add(self, name, data):
        self.known[name] = (hashlib.sha256(data).hexdigest(), len(data))
        self.file.write(f"{self.known[name][0]} {len(data)} {name}\n")

    def close(self):
        self.file.close()


def as_jpeg(data, name):
    """ImageNet has one PNG under a .JPEG name (n02105855_2933): our reader takes JPEG only."""
    if data[:3] == b"\xff\xd8\xff":
        return data
    try:
        from PIL import Image
    except ImportError as error:
        raise BadData(f"{name} is no JPEG, and Pillow is not here to convert it: pip install pillow") from error
    try:
        out = io.BytesIO()
        Image.open(io.BytesIO(data)).convert("RGB").save(out, "JPEG", quality=95)
    except OSError as error:
        raise BadData(f"{name} is neither a JPEG nor another image: {error}") from error
    print(f"{name}: converted to JPEG", file=sys.stderr)
    return out.getvalue()


def store(listing, root, name, data):
    data = as_jpeg(data, name)
    target = root / name
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, data)
    listing.add(name, data)


# --- extract ------------------------------------------------------------------------------------------------------
def safe_name(member, suffix):
    name = Path(member.name).name
    if not member.isfile() or not name.endswith(suffix) or name.startswith("."):
        raise BadData(f"unexpected member {member.name!r} in the archive")
    return name


def extract_train(archive_path, root, classes, expected):
    listing = ListWriter(root.parent / "train.list")
    progress, seen = Progress("train", expected), set()
    with contextlib.closing(listing), tarfile.open(archive_path, "r:") as archive:
        for outer in archive:
            wnid = safe_name(outer, ".tar").removesuffix(".tar")
            if wnid not in classes:
                raise BadData(f"{archive_path}: class {wnid} is not in the devkit")
            seen.add(wnid)
            with tarfile.open(fileobj=archive.extractfile(outer), mode="r:") as inner:
                for member in inner:
                    name = f"{wnid}/{safe_name(member, '.JPEG')}"
                    # A converted file has another size than its member: its list line alone tells.
                    if not listing.done(name, listing.known.get(name, (0, member.size))[1], root / name):
                        data = inner.extractfile(member).read()
                        if len(data) != member.size:
                            raise BadData(f"{archive_path}: {name} is cut off")
                        store(listing, root, name, data)
                    progress.step()
    progress.close()
    if seen != classes:
        raise BadData(f"{archive_path}: {len(classes - seen)} classes are missing, such as {min(classes - seen)}")


def read_devkit(path):
    """(class of each validation image in order, all classes). meta.mat numbers the classes: ILSVRC2012_ID 1..1000."""
    synsets = labels = None
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith("data/meta.mat"):
                synsets = read_meta(archive.extractfile(member).read(), f"{path}: meta.mat")
            elif member.name.endswith("data/ILSVRC2012_validation_ground_truth.txt"):
                labels = [int(word) for word in archive.extractfile(member).read().split()]
    if synsets is None or labels is None:
        raise BadData(f"{path}: no meta.mat or no ILSVRC2012_validation_ground_truth.txt in it")
    for number, label in enumerate(labels, 1):
        if label not in synsets:
            raise BadData(f"{path}: ground truth line {number}: class {label} is not in meta.mat")
    return [synsets[label] for label in labels], set(synsets.values())


def mat_elements(data, where):
    """MATLAB 5: elements of {type, bytes, payload padded to 8}; small ones have both in one word."""
    offset = 0
    while offset + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, offset)
        if kind >> 16:
            kind, size, begin, step = kind & 0xFFFF, kind >> 16, offset + 4, 8
        else:
            begin, step = offset + 8, 8 + (size if kind == 15 else (size + 7) // 8 * 8)
        if size > len(data) - begin:
            raise BadData(f"{where}: at byte {offset}: an element of {size} bytes goes past the end")
        payload = data[begin:begin + size]
        if kind == 15:  # compressed
            yield from mat_elements(zlib.decompress(payload), where)
        else:
            yield kind, payload
        offset += step


def mat_value(payload, where):
    """A number, a string, or (for the struct array) a list of fields: what meta.mat is made of."""
    parts = list(mat_elements(payload, where))
    if len(parts) < 4:
        return None
    array_class = parts[0][1][0]
    if array_class == 2:  # struct: flags, dimensions, name, field name length, field names, then the fields of each entry
        width = struct.unpack("<i", parts[3][1][:4])[0]
        names = [parts[4][1][i:i + width].split(b"\0")[0].decode() for i in range(0, len(parts[4][1]), width)]
        values = [part[1] for part in parts[5:]]
        return [dict(zip(names, values[i:i + len(names)])) for i in range(0, len(values), len(names))]
    kind, raw = parts[3]
    if array_class == 4:  # text, as 1- or 2-byte characters
        return raw.decode("utf-16-le" if kind in (4, 17) else "utf-8")
    form = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}.get(kind)
    return struct.unpack_from("<" + form, raw)[0] if form and raw else None


def read_meta(data, where):
    try:
        for kind, payload in mat_elements(data[128:], where):
            if kind == 14:
                entries = mat_value(payload, where)
                found = {}
                for entry in entries:
                    number, children = mat_value(entry["ILSVRC2012_ID"], where), mat_value(entry["num_children"], where)
                    if int(children) == 0:  # inner nodes of the hierarchy are no classes
                        found[int(number)] = mat_value(entry["WNID"], where)
                if found:
                    return found
    except (struct.error, KeyError, TypeError, IndexError, ValueError, zlib.error) as error:
        raise BadData(f"{where}: not the structure of the official devkit ({error!r})") from error
    raise BadData(f"{where}: no classes in it")


def extract_val(archive_path, root, labels):
    listing = ListWriter(root.parent / "val.list")
    progress, seen = Progress("val", len(labels)), 0
    with contextlib.closing(listing), tarfile.open(archive_path, "r:") as archive:
        for member in archive:
            name = safe_name(member, ".JPEG")
            number = int(name.removesuffix(".JPEG").rpartition("_")[2])
            if not 1 <= number <= len(labels):
                raise BadData(f"{archive_path}: {name}: the devkit has {len(labels)} validation labels")
            name = f"{labels[number - 1]}/{name}"
            if not listing.done(name, listing.known.get(name, (0, member.size))[1], root / name):
                data = archive.extractfile(member).read()
                if len(data) != member.size:
                    raise BadData(f"{archive_path}: {name} is cut off")
                store(listing, root, name, data)
            seen += 1
            progress.step()
    progress.close()
    if seen != len(labels):
        raise BadData(f"{archive_path}: {seen} images, the devkit has {len(labels)} labels")


def extract(options):
    for part in ("train", "val", "devkit"):
        path = getattr(options, part)
        if not path.is_file():
            raise OSError(f"{path}: no such file")
    root = options.to
    root.mkdir(parents=True, exist_ok=True)
    if not options.no_md5:
        for part in ("train", "val", "devkit"):
            mark = root / f".{part}.md5"  # 138 GB take 10 minutes to read: once is enough
            status = getattr(options, part).stat()
            stamp = f"{OFFICIAL_MD5[part]} {status.st_size} {status.st_mtime_ns}"
            if not mark.exists() or mark.read_text() != stamp:
                check_md5(getattr(options, part), OFFICIAL_MD5[part])
                mark.write_text(stamp)
    try:
        labels, classes = read_devkit(options.devkit)
        extract_val(options.val, root / "val", labels)
        extract_train(options.train, root / "train", classes, None if options.no_md5 else OFFICIAL_COUNT["train"])
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise BadData(f"an archive is damaged or cut off: {error}") from error
    if not options.no_md5:
        expect_official(root)
    verify(options, hashes=False)


def expect_official(root):
    for part in ("train", "val"):
        count = len(read_list(root / f"{part}.list"))
        if count != OFFICIAL_COUNT[part]:
            raise BadData(f"{root / part}: {count} files, {OFFICIAL_COUNT[part]} expected")


def verify(options, hashes=True):
    """Every listed file is there with its size (and SHA-256), and nothing else is."""
    for part in ("train", "val"):
        listed, folder = read_list(options.to / f"{part}.list"), options.to / part
        if not listed:
            raise BadData(f"{options.to / part}.list: missing or empty: run extract first")
        found = {f"{path.parent.name}/{path.name}" for path in folder.glob("*/*")}
        for name in sorted(set(listed) - found)[:1]:
            raise BadData(f"{folder / name}: missing (and {len(set(listed) - found) - 1} more)")
        for name in sorted(found - set(listed))[:1]:
            raise BadData(f"{folder / name}: not in the list (and {len(found - set(listed)) - 1} more)")
        progress = Progress(f"verify {part}", len(listed))
        for name, (sha, size) in listed.items():
            path = folder / name
            if path.stat().st_size != size:
                raise BadData(f"{path}: {path.stat().st_size} bytes, {size} expected")
            if hashes and hashlib.sha256(path.read_bytes()).hexdigest() != sha:
                raise BadData(f"{path}: SHA-256 differs from the list")
            progress.step()
        progress.close()
        print(f"{part}: {len(listed)} files in {len({n.split('/')[0] for n in listed})} classes, {'checksums' if hashes else 'sizes'} right")


# --- shard --------------------------------------------------------------------------------------------------------
def plan_shards(files, limit):
    """Cuts the order into runs of at most `limit` bytes (one file at least)."""
    shards, size = [[]], 0
    for path, label in files:
        count = path.stat().st_size
        if shards[-1] and size + count > limit:
            shards.append([])
            size = 0
        shards[-1].append((path, label, count))
        size += count
    return shards


def write_shard(target, samples, classes):
    offset, index = 16 + 24 * len(samples), bytearray()
    partial = target.with_name(target.name + ".part")
    with open(partial, "wb") as out:
        out.seek(offset)
        for path, label, size in samples:
            data = path.read_bytes()
            if len(data) != size or data[:3] != b"\xff\xd8\xff":
                raise BadData(f"{path}: at byte 0: no JPEG, or it changed while being read")
            index += struct.pack("<QIIII", offset, size, label, zlib.crc32(data), 0)
            out.write(data)
            offset += size
        out.seek(0)
        out.write(b"MRSHARD1" + struct.pack("<II", classes, len(samples)) + index)
    os.replace(partial, target)


def shard_ready(target, samples, classes):
    """A finished shard of an earlier run: the same samples, in the same order."""
    total = 16 + 24 * len(samples) + sum(size for _, _, size in samples)
    if not target.exists() or target.stat().st_size != total:
        return False
    with open(target, "rb") as file:
        head = file.read(16 + 24 * len(samples))
    if head[:16] != b"MRSHARD1" + struct.pack("<II", classes, len(samples)):
        return False
    return all(struct.unpack_from("<QII", head, 16 + 24 * i)[1:] == (size, label) for i, (_, label, size) in enumerate(samples))


def shard(options):
    source = options.source
    names = sorted(path.name for path in (source / "train").iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise BadData(f"{source / 'train'}: no class folders in it")
    options.to.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        folder, files = source / part, []
        for label, name in enumerate(names):
            if not (folder / name).is_dir():
                raise BadData(f"{folder / name}: this class folder is missing")
            here = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in (".jpeg", ".jpg") and not path.name.startswith("."))
            if not here:
                raise BadData(f"{folder / name}: no JPEG file in this class folder")
            files += [(path, label) for path in here]
        if part == "train":  # shuffled once, so that a run of neighbours holds many classes
            random.Random(options.seed).shuffle(files)
        shards = plan_shards(files, int(options.shard_mb * 1e6))
        progress = Progress(f"shard {part}", len(files))
        for number, samples in enumerate(shards):
            target = options.to / f"{part}-{number:05}.shard"
            if not shard_ready(target, samples, len(names)):
                write_shard(target, samples, len(names))
            progress.step(len(samples))
        progress.close()
        for stale in sorted(options.to.glob(f"{part}-*.shard"))[len(shards):]:
            raise BadData(f"{stale}: left from another run with smaller shards: remove it")
        print(f"{part}: {len(files)} files in {len(shards)} shards, {len(names)} classes")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("extract", help="archives to class folders")
    for part in ("train", "val", "devkit", "to"):
        one.add_argument(f"--{part}", type=Path, required=True)
    one.add_argument("--no-md5", action="store_true", help="for archives other than the official ones: no check of their MD5 and counts")
    two = commands.add_parser("verify", help="files against the lists")
    two.add_argument("--to", type=Path, required=True)
    three = commands.add_parser("shard", help="class folders to shard files")
    three.add_argument("--from", dest="source", type=Path, required=True)
    three.add_argument("--to", type=Path, required=True)
    three.add_argument("--shard-mb", type=float, default=1024)
    three.add_argument("--seed", type=int, default=1)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as error:
        return 64 if error.code else 0
    try:
        {"extract": extract, "verify": verify, "shard": shard}[options.command](options)
    except BadData as error:
        print(f"error: {error}", file=sys.stderr)
        return 65
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 74
    return 0


if __name__ == "__main__":
    sys.exit(main())
