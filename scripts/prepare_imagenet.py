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
import sys
import tarfile
import zlib
from pathlib import Path

from imagenet.basics import BadData, Progress
from imagenet.devkit import read_devkit
from imagenet.shards import shard

OFFICIAL_MD5 = {
    "train": "1d675b47d978889d74fa0da5fadfb00e",
    "val": "29b22e2961454d5413ddabcf34fc5622",
    "devkit": "fa75699e90414af021442c21a62c3abf",
}
OFFICIAL_COUNT = {"classes": 1000, "train": 1281167, "val": 50000}
CHUNK = 1 << 20


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
