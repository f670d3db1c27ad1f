#!/usr/bin/env python3
"""Fetches MNIST or CIFAR-10 into a folder that --data understands.

    scripts/download_data.py mnist   [--to data/mnist]
    scripts/download_data.py cifar10 [--to data/cifar10]
    scripts/download_data.py mnist --mirror http://my.host/mnist/     instead of the usual mirrors

Mirrors are tried in turn; a broken download goes on where it stopped; a file counts only when its checksum is right.
Run again, it fetches only what is missing. Exit: 0 good, 64 usage, 65 wrong checksum everywhere, 74 no mirror answers.
"""
import argparse
import hashlib
import os
import shutil
import sys
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path

# MD5 is what the publishers give; it guards against damage here, not against an attacker.
SETS = {
    "mnist": {
        "mirrors": ["https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"],
        "files": {
            "train-images-idx3-ubyte.gz": ("md5", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            "train-labels-idx1-ubyte.gz": ("md5", "d53e105ee54ea40749a09fcbcd1e9432"),
            "t10k-images-idx3-ubyte.gz": ("md5", "9fb629c4189551a2d022fa330f9573f3"),
            "t10k-labels-idx1-ubyte.gz": ("md5", "ec29112dd5afa0611ce80d1b7f02629c"),
        },
    },
    "cifar10": {
        "mirrors": ["https://www.cs.toronto.edu/~kriz/"],
        "files": {"cifar-10-binary.tar.gz": ("md5", "c32a1d4ab5d03f1284b67883e8d87530")},
    },
}
CHUNK = 1 << 16


class WrongChecksum(Exception):
    pass


def digest(path, algorithm):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() if hasattr(hashlib, "file_digest") else _digest(file, algorithm)


def _digest(file, algorithm):
    value = hashlib.new(algorithm)
    for chunk in iter(lambda: file.read(CHUNK), b""):
        value.update(chunk)
    return value.hexdigest()


class Progress:
    """One line that rewrites itself on a terminal; nothing in a log but the result."""

    def __init__(self, name, done, total):
        self.name, self.done, self.total, self.shown = name, done, total, 0.0

    def add(self, count):
        self.done += count
        if sys.stderr.isatty() and time.monotonic() - self.shown > 0.1:
            self.shown = time.monotonic()
            share = f"{100 * self.done / self.total:5.1f}%" if self.total else ""
            print(f"\r  {self.name}  {self.done / 1e6:8.1f} MB {share}", end="", file=sys.stderr)

    def close(self):
        if sys.stderr.isatty():
            print(file=sys.stderr)


def fetch(url, partial, timeout):
    """Appends to `partial` what is missing of `url`. Raises OSError if the stream ends before its announced length."""
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # "range not satisfiable": we have it all; the checksum will tell
            raise
        error.close()
        return
    with answer:
        resumed = answer.status == 206
        if resumed and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            resumed = False
        if have and not resumed:
            have = 0  # this server knows no ranges, and sends everything again
        length = answer.headers.get("Content-Length")
        expected = have + int(length) if length else None
        progress = Progress(partial.stem, have, expected)
        with open(partial, "ab" if resumed else "wb") as out:
            for chunk in iter(lambda: answer.read(CHUNK), b""):
                out.write(chunk)
                progress.add(len(chunk))
        progress.close()
        if expected is not None and progress.done != expected:
            raise OSError(f"the connection ended after {progress.done} of {expected} bytes")


def obtain(name, checksum, mirrors, folder, retries, timeout):
    """One file, from the first mirror that gives it whole."""
    algorithm, wanted = checksum
    target, partial = folder / name, folder / (name + ".part")
    if target.exists() and digest(target, algorithm) == wanted:
        print(f"{name}: already here, checksum right")
        return
    wrong = None
    for mirror in mirrors:
        for attempt in range(retries):
            try:
                fetch(mirror.rstrip("/") + "/" + name, partial, timeout)
            except (OSError, urllib.error.URLError, ValueError) as error:
                print(f"{name}: {mirror}: {error}", file=sys.stderr)
                if isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500:
                    break  # asking again will not help
                time.sleep(min(2.0, 0.1 * 2**attempt))
                continue
            found = digest(partial, algorithm) if partial.exists() else "nothing"
            if found == wanted:
                os.replace(partial, target)
                print(f"{name}: {target.stat().st_size} bytes from {mirror}, {algorithm} right")
                return
            # The part may stem from another mirror or an older file: throw it away before anything is tried again.
            wrong = f"{name}: {algorithm} {found}, {wanted} expected, from {mirror}"
            print(wrong, file=sys.stderr)
            partial.unlink(missing_ok=True)
    if wrong:
        raise WrongChecksum(wrong)
    raise OSError(f"{name}: no mirror gave it: {', '.join(mirrors)}")


def unpack_cifar(folder):
    """The six .bin files, beside the archive; each is written whole or not at all."""
    with tarfile.open(folder / "cifar-10-binary.tar.gz") as archive:
        for member in archive:
            name = Path(member.name).name
            if not member.isfile() or not name.endswith(".bin"):
                continue
            target = folder / name
            if target.exists() and target.stat().st_size == member.size:
                continue
            with archive.extractfile(member) as source, open(folder / (name + ".part"), "wb") as out:
                shutil.copyfileobj(source, out)
            os.replace(folder / (name + ".part"), target)
            print(f"{name}: {member.size} bytes")


def main(arguments=None, sets=SETS):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.exit_on_error = False
    parser.add_argument("set", choices=sorted(sets))
    parser.add_argument("--to", type=Path, help="folder; data/SET unless given")
    parser.add_argument("--mirror", action="append", help="take this address instead of the usual ones (may be repeated)")
    parser.add_argument("--retries", type=int, default=5, help="attempts for each mirror")
    parser.add_argument("--timeout-s", type=float, default=30, help="how long a connection may be silent")
    try:
        options = parser.parse_args(arguments)
    except (argparse.ArgumentError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == 0:
            return 0
        print(error, file=sys.stderr)
        return 64
    chosen = sets[options.set]
    folder = options.to or Path("data") / options.set
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, checksum in chosen["files"].items():
            obtain(name, checksum, options.mirror or chosen["mirrors"], folder, options.retries, options.timeout_s)
        if options.set == "cifar10":
            unpack_cifar(folder)
    except (WrongChecksum, tarfile.TarError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 65
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 74
    print(f"use it with: --data {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
