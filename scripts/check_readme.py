#!/usr/bin/env python3
"""Runs the commands of a README and compares what they print with what the README says they print.

A block fenced as ```console holds commands (lines that start with "$ ") and, below each, what it printed. Numbers, times
and host names differ from run to run, so both sides are compared with every number and the host's name masked; a line "..."
stands for any lines. "# exit 69" behind a command says that it must end with that code; a
pipe ends with the code of the last part that fails, which the text may call "# exit 65 with pipefail".

A block fenced as ```sh is one script, and must end well. What no test can run says why: a comment "# not run: REASON" at the end
of the command or on the line above it, or, for a whole block, "not-run: REASON" behind ```sh. These are listed and counted.

Whatever is not run is looked at: each script of ours that a command begins with, in a block or between `backquotes`, must be there and executable.

Commands see no GPU, so that every machine prints the same. A command that ends with 77 where nobody expected it was skipped: it
says what it lacks. Other blocks are not run.
"""
import argparse
import dataclasses
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

import launcher

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOT_RUN = re.compile(r"#.*\bnot run: (\S.*)$")
OURS = re.compile(r"(?:^\s*(?:\$ )?|&& |\| |; |`)(?:\./)?(scripts/[\w/]+\.(?:py|sh))(?=[\s`]|$)", re.MULTILINE)  # where a command begins
# Root and more ranks than cores, without cluttering the text with flags that a laptop does not need.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "CUDA_VISIBLE_DEVICES": "",
               "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"}


@dataclasses.dataclass
class Block:
    kind: str      # console or sh
    start: int     # number of the first line inside
    lines: list
    not_run: str   # why, or empty


def blocks(text):
    """Yields the console and sh blocks."""
    fence, block = "", None
    for number, line in enumerate(text.splitlines(), 1):
        if fence:
            if line.startswith("```"):
                if block:
                    yield block
                fence, block = "", None
            elif block:
                block.lines.append(line)
        elif line.startswith("```"):
            fence = line
            opened = re.match(r"```(console|sh)\b\s*(?:not-run: (\S.*))?", line)
            block = Block(opened[1], number + 1, [], opened[2] or "") if opened else None
    if fence:
        sys.exit(f"block {fence} is never closed")


def statements(block):
    """Yields (line number, text, why it is not run) of a script: lines that continue, or a loop, are one statement."""
    start, lines, comment = 0, [], ""
    for number, line in enumerate(block.lines, block.start):
        if not lines and (not line.strip() or line.lstrip().startswith("#")):
            comment = line
            continue
        start = start if lines else number
        lines.append(line)
        text = "\n".join(lines)
        if line.endswith("\\") or subprocess.run(["bash", "-n", "-c", text], capture_output=True).returncode:
            continue
        marks = [found[1] for candidate in (comment, *lines) if (found := NOT_RUN.search(candidate))]
        yield start, text, block.not_run or (marks[0] if marks else "")
        lines, comment = [], ""
    if lines:
        yield start, "\n".join(lines), block.not_run  # bash will say what is wrong with it


def script(texts):
    """One script, so that variables live on; it ends with the first failure, and waits for what it sent into the background."""
    each = [text + ("\nbackground+=($!)" if re.search(r"(?<!&)&\s*(#.*)?$", text) else "") for text in texts]
    return "\n".join(["set -e; background=()", *each, 'for job in "${background[@]}"; do wait "$job"; done'])


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
    code = re.search(r"\s+# exit (\d+)(?: with pipefail)?$", text)
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


def run(command, timeout):
    """(exit code or None after the timeout, lines). A pipe fails with any of its parts; after the timeout nobody is left behind."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                launcher.end(process)
        output.seek(0)
        return code, output.read().splitlines()


def unusable(text):
    """Scripts of ours that somebody who types what the text says cannot run."""
    return sorted({name for name in OURS.findall(text) if not os.access(ROOT / name, os.X_OK)})


class Check:
    def __init__(self, readme, timeout):
        self.readme, self.timeout = readme, timeout
        self.ran = self.failed = self.skipped = self.left_out = 0

    def block(self, block):
        if block.kind == "console":
            for number, command, code, expected in commands(block.start, block.lines):
                if block.not_run:
                    self.leave_out(number, command, block.not_run)
                else:
                    self.command([(number, command)], command, code, expected)
            return
        wanted = []
        for number, text, why in statements(block):
            if why:
                self.leave_out(number, text, why)
            else:
                wanted.append((number, text))
        if wanted:
            self.command(wanted, script([text for _, text in wanted]))

    def leave_out(self, number, text, why):
        print(f"{self.readme}:{number}: $ {text}\n  not run: {why}", flush=True)
        self.left_out += 1

    def command(self, shown, command, code=0, expected=()):
        for number, text in shown:
            print(f"{self.readme}:{number}: $ {text}", flush=True)
        self.ran += len(shown)
        returned, lines = run(command, self.timeout)
        missing = first_difference(expected, lines)
        if returned == 77 != code:
            self.skipped += 1
            print("  SKIPPED: " + next((line for line in lines if "skipped (" in line), "no reason given"))
            return
        if returned == code and missing is None:
            return
        self.failed += 1
        print(f"  FAILED: still running after {self.timeout:g} s" if returned is None else f"  FAILED: exit {returned}, expected {code}" if returned != code
              else f"  FAILED: the output lacks, at its place: {missing}")
        print("  | " + "\n  | ".join(lines[-60:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readme", type=pathlib.Path)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each command, or script")
    parser.add_argument("--list", action="store_true", help="only say what would not be run, and why")
    arguments = parser.parse_args()
    check = Check(arguments.readme, arguments.timeout)
    if arguments.list:
        check.command = lambda *_: None
    for block in blocks(arguments.readme.read_text()):
        check.block(block)
    for name in unusable(arguments.readme.read_text()):
        check.failed += 1
        print(f"{arguments.readme}: FAILED: {name} is not there, or not executable")
    if check.ran == 0 and not arguments.list:
        sys.exit(f"{arguments.readme}: no command was run: nothing was checked")
    print(f"{check.ran} commands run, {check.failed} failed, {check.skipped} skipped, {check.left_out} not run (marked)")
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
