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
    kind: str = "measured"

    def text(self):
        of = f"{self.law}, {self.workload}, {self.variant} ({self.kind})"
        if self.share is None:
            return f"{of}: not fitted: {self.why_not}"
        limit = f", so at most {1 / self.share:.0f}x" if self.law == "Amdahl" and self.share > 1e-6 else ""
        return f"{of}: serial share {100 * self.share:.2f}%{limit} ({self.points} points, largest error {100 * self.error:.1f}%)"


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


def fit(law, workload, variant, points, kind="measured"):
    """points: [(ranks, Point of seconds, oversubscribed)]"""
    usable = [(n, point.median) for n, point, over in points if not over]
    made = Fit(law, workload, variant, len(usable), kind=kind)
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
    groups = scaling.groups_of(rows)
    return [fit("Amdahl" if group[0]["scaling"] == "strong" else "Gustafson", ", ".join([group[0]["workload"] or group[0]["lesson"], *scaling.words_of(group, groups)]), variant, points,
                group[0]["kind"]) for group in groups for variant, points in scaling.variants(group).items()]
