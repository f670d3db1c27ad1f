"""Class folders to a few large files (format: common/data/shards.hpp); resumable, shard by shard."""
import os
import random
import struct
import zlib

from .basics import BadData, Progress


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
