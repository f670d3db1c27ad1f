"""What all parts use: the error that means exit 65, and progress on a terminal or in a log."""
import sys
import time


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
