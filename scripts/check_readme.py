#!/usr/bin/env python3
"""Runs the commands of a README and compares what they print with what the README says they print.

A block fenced as ```console holds commands (lines that start with "$ ") and, below each, what it printed. Numbers, times
and host names differ from run to run, so both sides are compared with every number and the host's name masked; a line "..."
stands for any lines. "# exit 69" behind a command says that it must end with that code. Other blocks are not run.
"""
import argparse
import os
import pathlib
import re
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def blocks(text):
    """Yields (line number, lines) of each console block."""
    inside, start, lines = False, 0, []
    for number, line in enumerate(text.splitlines(), 1):
        if inside and line.startswith("```"):
            yield start, lines
            inside = False
        elif inside:
            lines.append(line)
        elif line.startswith("```console"):
            inside, start, lines = True, number + 1, []
    if inside:
        sys.exit(f"console block from line {start} is never closed")


def commands(start, lines):
    """Yields (line number, command, exit code, expected lines). A backslash at the end goes on in the next line."""
    current = None
    for offset, line in enumerate(lines):
        if current and current[1].endswith("\\") and not current[3]:
            current[1] = current[1][:-1] + line.strip()
        elif line.startswith("$ "):
            if current:
                yield finished(current)
            current = [start + offset, line[2:], 0, []]
        elif current:
            current[3].append(line)
    if current:
        yield finished(current)


def finished(command):
    number, text, _, expected = command
    code = re.search(r"\s+# exit (\d+)$", text)
    if code:
        text = text[: code.start()]
    while expected and not expected[-1].strip():
        expected.pop()
    return number, text, int(code.group(1)) if code else 0, expected


def mask(line):
    """What may differ between two runs, masked: numbers with their units, the host, bars and column widths."""
    line = re.sub(r"\b" + re.escape(socket.gethostname()) + r"\b", "HOST", line)
    line = re.sub(r"\bHOST\b|\blaptop\b", "HOST", line)
    line = re.sub(r"(?<![A-Za-z_])[-+]?\d+(\.\d+)?(e[-+]?\d+)?\s*(ns|us|ms|s|min|B|KiB|MiB|GiB|[kMG]?B/s|GFLOP/s|%|x)?(?![A-Za-z_])", "N", line)
    line = re.sub(r"(?<=\S) \*(?= |$)", "", line)  # "*" marks the fastest of a row: who that is may change
    line = re.sub(r"[-=]{3,}", "---", line)
    line = re.sub(r"#+", "#", line)
    return re.sub(r"\s+", " ", line).strip()


def first_difference(expected, actual):
    """None, or the first expected line that the output does not have at its place."""
    actual = [mask(line) for line in actual if line.strip()]
    position, anywhere = 0, False
    for line in (line for line in expected if line.strip()):
        if line.strip() == "...":
            anywhere = True
            continue
        wanted = mask(line)
        while anywhere and position < len(actual) and actual[position] != wanted:
            position += 1
        if position >= len(actual) or actual[position] != wanted:
            return line
        position, anywhere = position + 1, False
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readme", type=pathlib.Path)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each command")
    arguments = parser.parse_args()
    # Root and more ranks than cores, without cluttering the text with flags that a laptop does not need.
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                       PATH=f"{ROOT}/.venv/bin:{os.environ['PATH']}")
    ran = failed = 0
    for start, lines in blocks(arguments.readme.read_text()):
        for number, command, code, expected in commands(start, lines):
            where = f"{arguments.readme}:{number}: $ {command}"
            print(where, flush=True)
            try:
                result = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, text=True, timeout=arguments.timeout,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            except subprocess.TimeoutExpired:
                print(f"  FAILED: still running after {arguments.timeout:g} s")
                failed += 1
                continue
            ran += 1
            missing = first_difference(expected, result.stdout.splitlines())
            if result.returncode != code or missing is not None:
                failed += 1
                print(f"  FAILED: exit {result.returncode}, expected {code}" if result.returncode != code else f"  FAILED: the output lacks, at its place: {missing}")
                print("  | " + "\n  | ".join(result.stdout.splitlines()[-60:]))
    if ran + failed == 0:
        sys.exit(f"{arguments.readme}: no console block with a command: nothing was checked")
    print(f"{ran} commands run, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
