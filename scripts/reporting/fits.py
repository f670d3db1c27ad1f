"""Amdahl's and Gustafson's serial share, fitted only where the data can carry it.

Two points always lie on a line, and three nearly do: fewer than four numbers of ranks say nothing about a law. Oversubscribed runs measure the
scheduler, not the program, and are left out.
"""
import dataclasses

import numpy

from figures import scaling

LEAST = 4


@dataclasses.dataclass
class Fit:
    law: str
    workload: str
    variant: str
    points: int
    share: float = None    # serial share, None: not fitted
    error: float = None    # largest relative error of the fitted times
    why_not: str = ""

    def text(self):
        if self.share is None:
            return f"{self.law}, {self.workload}, {self.variant}: not fitted: {self.why_not}"
        limit = f", so at most {1 / self.share:.0f}x" if self.law == "Amdahl" and self.share > 1e-6 else ""
        return f"{self.law}, {self.workload}, {self.variant}: serial share {100 * self.share:.2f}%{limit} ({self.points} points, largest error {100 * self.error:.1f}%)"


def amdahl(ranks, seconds):
    """(share, largest relative error) for T(n) = T(1) (s + (1 - s) / n). Relative errors are minimised: small times count as much as large ones."""
    n, t = numpy.array(ranks, float), numpy.array(seconds, float)
    (fixed, divided), *_ = numpy.linalg.lstsq(numpy.stack([1 / t, 1 / (n * t)], axis=1), numpy.ones(len(n)), rcond=None)
    return fixed / (fixed + divided), float(numpy.max(numpy.abs((fixed + divided / n) / t - 1)))


def gustafson(ranks, seconds):
    """(share, largest relative error) for the scaled speed-up n T(1) / T(n) = n - s (n - 1)."""
    n, t = numpy.array(ranks, float), numpy.array(seconds, float)
    scaled = n * t[0] / t
    share = float(numpy.dot(n - 1, n - scaled) / numpy.dot(n - 1, n - 1))
    return share, float(numpy.max(numpy.abs((n - share * (n - 1)) / scaled - 1)))


def fit(law, workload, variant, points):
    """points: [(ranks, Point of seconds, oversubscribed)]"""
    usable = [(n, point.median) for n, point, over in points if not over]
    made = Fit(law, workload, variant, len(usable))
    if len(usable) < LEAST:
        left_out = len(points) - len(usable)
        made.why_not = f"{len(usable)} points are not oversubscribed, {LEAST} are needed" + (f" ({left_out} oversubscribed left out)" if left_out else "")
    elif law == "Gustafson" and usable[0][0] != 1:
        made.why_not = "there is no run on one rank"
    else:
        share, error = (amdahl if law == "Amdahl" else gustafson)(*zip(*usable))
        if 0 <= share <= 1:
            made.share, made.error = float(share), error
        else:
            made.why_not = f"the share would be {100 * share:.1f}%: these times do not follow the law"
    return made


def all_fits(rows):
    return [fit("Amdahl" if group[0]["scaling"] == "strong" else "Gustafson", group[0]["workload"] or group[0]["lesson"], variant, points)
            for group in scaling.groups_of(rows) for variant, points in scaling.variants(group).items()]
