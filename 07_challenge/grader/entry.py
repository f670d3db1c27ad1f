"""What both graders begin and end with: flags that are refused with 64, signals that leave no process behind, and no points lost to a broken machine."""
import argparse
import os
import signal
import sys


class Broken(Exception):
    """Nothing can be judged here, and the learner's file is not why."""


class Usage(Exception):
    """It was asked for something that cannot be."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.print_usage(sys.stderr)
        print(f"grade.sh: {message}", file=sys.stderr)
        sys.exit(64)


def whole(least, most=1 << 62):
    """A type for a flag: a whole number from `least` on."""
    def read(text):
        number = int(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{number} is not from {least} to {most}" if most < 1 << 62 else f"{number} is less than {least}")
        return number
    read.__name__ = "whole number"
    return read


def positive(text):
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def run(main):
    """The exit code of main(). SIGTERM is treated as Ctrl-C: whoever runs something then ends it (processes.run)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return main()
    except Broken as why:
        print(f"grade.sh: cannot grade here: {why}", file=sys.stderr)
        return 69
    except Usage as why:
        print(f"grade.sh: {why}", file=sys.stderr)
        return 64
    except KeyboardInterrupt:
        print("\ngrade.sh: interrupted; no process was left behind", file=sys.stderr)
        return 130
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
