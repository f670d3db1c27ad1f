"""What all figures share: how they look, what they know about themselves, and what stands below them.

Readable in print and by the colour-blind: the palette of Okabe and Ito, and beside the colour always a second sign (marker and line
style for lines, hatching for bars). A hollow marker or bar is a run with more ranks than cores or GPUs.
"""
import dataclasses
import io
import re
import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.container import ErrorbarContainer  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

import results  # noqa: E402

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]  # yellow is left out: too pale on white paper
MARKERS = "osD^vPX*<>"
LINES = ["-", "--", "-.", ":"]
HATCHES = ["", "//", "..", "xx", "\\\\", "++", "oo", "--"]
plt.rcParams.update({"font.size": 9, "axes.grid": True, "grid.color": "#DDDDDD", "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.spines.top": False,
                     "axes.spines.right": False, "svg.fonttype": "none", "pdf.fonttype": 42, "legend.frameon": False, "hatch.linewidth": 0.6, "savefig.dpi": 160,
                     "svg.hashsalt": "manyranks"})
OVERSUBSCRIBED = "hollow: more ranks than cores or GPUs"


@dataclasses.dataclass
class Panel:
    """One pair of axes as data: what a reader may check against the CSV. Values are the plotted medians."""
    x_label: str
    y_label: str
    unit: str                                              # of y
    series: dict = dataclasses.field(default_factory=dict)   # label -> [(x, y)]
    repeats: dict = dataclasses.field(default_factory=dict)  # label -> [n]
    spreads: list = dataclasses.field(default_factory=list)  # (max - min) / median of each point

    def note(self, label, points):
        """How often each point was repeated, and how far its repeats lie apart."""
        points = list(points)
        self.repeats[label] = [point.n for point in points]
        self.spreads += [(point.high - point.low) / abs(point.median) for point in points if point.median]


@dataclasses.dataclass
class Figure:
    name: str
    title: str
    what: str            # the first sentence of the caption
    rows: list
    panels: list
    figure: object       # matplotlib's
    baseline: str = ""   # for speed-ups: what they are against
    relative: bool = False
    modelled: str = ""   # lines that come from a formula, not from a run
    baseline_oversubscribed: bool = False

    def intervals_shown(self):
        """For each panel, whether matplotlib really holds error bars: what is drawn counts, not what was meant."""
        return [any(isinstance(drawn, ErrorbarContainer) for drawn in ax.containers) for ax in self.figure.axes]

    def description(self):
        """Machine-readable, for tests and for readers of the JSON beside the picture."""
        return {"name": self.name, "title": self.title, "caption": caption(self), "kinds": results.names(self.rows, "kind"), "baseline": self.baseline,
                "panels": [{"x": panel.x_label, "y": panel.y_label, "unit": panel.unit, "interval": shown,
                            "points": {label: len(points) for label, points in panel.series.items()},
                            "repeats": {label: [min(counts), max(counts)] for label, counts in panel.repeats.items() if counts}} for panel, shown in zip(self.panels, self.intervals_shown())]}

    def least_repeats(self):
        return min((n for panel in self.panels for counts in panel.repeats.values() for n in counts), default=0)

    def close(self):
        plt.close(self.figure)


def slug(*words):
    return re.sub(r"[^a-z0-9]+", "_", "_".join(str(word) for word in words if word not in (None, "")).lower()).strip("_")


def axes(columns=1, width=4.6, height=3.6, rows=1):
    """A figure and its axes, always as a list."""
    figure, made = plt.subplots(rows, columns, figsize=(width * columns, height * rows), layout="constrained", squeeze=False)
    figure.get_layout_engine().set(w_pad=0.08)
    return figure, list(made.flat)


def look(index):
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "linestyle": LINES[(index + index // len(MARKERS)) % len(LINES)]}


def draw_series(ax, index, label, points, hollow):
    """A line of medians with bars from the smallest to the largest repeat. points: [(x, results.Point)]; hollow: [bool]."""
    sign = look(index)
    # Later series are drawn smaller: where two coincide, both are seen.
    size, width = max(4.2, 7.0 - 0.8 * index), max(1.0, 1.9 - 0.2 * index)
    x = [at for at, _ in points]
    y = [point.median for _, point in points]
    ax.plot(x, y, color=sign["color"], linestyle=sign["linestyle"], linewidth=width, gid=f"line:{label}")
    if any(point.n > 1 for _, point in points):
        below = [point.median - point.low for _, point in points]
        above = [point.high - point.median for _, point in points]
        ax.errorbar(x, y, yerr=[below, above], fmt="none", ecolor=sign["color"], elinewidth=1, capsize=2.5)
    for is_hollow in (False, True):
        chosen = [(a, b) for a, b, flag in zip(x, y, hollow) if flag == is_hollow]
        if chosen:
            ax.plot(*zip(*chosen), linestyle="none", marker=sign["marker"], markersize=size, markeredgecolor=sign["color"], markeredgewidth=1.2,
                    markerfacecolor="white" if is_hollow else sign["color"], gid=f"points:{label}")
    return Line2D([], [], label=label, markersize=5.5, linewidth=1.3, **sign)


def hollow_handle():
    return Line2D([], [], linestyle="none", marker="o", markerfacecolor="white", markeredgecolor="#444444", label=OVERSUBSCRIBED)


def ideal_handle(label="ideal"):
    return Line2D([], [], color="#777777", linewidth=1, linestyle=(0, (1, 1.5)), label=label)


def draw_ideal(ax, x, y):
    ax.plot(x, y, color="#777777", linewidth=1, linestyle=(0, (1, 1.5)), zorder=1, gid="ideal")


def legend_below(figure, handles):
    """One legend for all panels, in a strip of its own below them: it never covers data."""
    lengths = [len(handle.get_label()) + 8 for handle in handles]
    room = figure.get_figwidth() * 14.5  # letters of this size on one line
    columns = max((n for n in range(1, len(handles) + 1) if sum(legend_columns(lengths, n)) <= room), default=1)
    strip = 0.19 * -(-len(handles) // columns) + 0.08
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + strip)
    figure.get_layout_engine().set(rect=(0, strip / (height + strip), 1, height / (height + strip)))
    figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 0), borderaxespad=0.1, borderpad=0.1, ncols=columns, fontsize=8)


def legend_columns(lengths, columns):
    """The width of each column: matplotlib fills the first columns with one entry more when they do not come out even."""
    each, more = divmod(len(lengths), columns)
    widths, at = [], 0
    for column in range(columns):
        size = each + (column < more)
        widths.append(max(lengths[at:at + size]))
        at += size
    return widths


def rank_axis(ax, ranks):
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted(set(ranks)), [str(n) for n in sorted(set(ranks))])
    ax.minorticks_off()
    ax.set_xlim(min(ranks) * 0.85, max(ranks) * 1.18)


def bytes_text(size):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.3g} {unit}"
        size /= 1024
    return ""


def number_text(value):
    """Three digits, and never an exponent where a person would write the number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def seconds_text(seconds):
    factor, unit = seconds_scale([seconds])
    return f"{seconds * factor:.3g} {unit}"


def seconds_scale(values):
    """(factor, unit) that make the largest of these seconds readable."""
    largest = max(values)
    return (1e6, "us") if largest < 1e-3 else (1e3, "ms") if largest < 1 else (1, "s")


def labels_of(groups, columns):
    """A label for each group of rows, from as few of the columns as tell the groups apart."""
    chosen = list(columns[:1])
    text = lambda rows: ", ".join(f"{rows[0][column]}" for column in chosen if rows[0][column] not in (None, "")) or "(no name)"  # noqa: E731
    for column in columns[1:]:
        if len({text(rows) for rows in groups}) == len(groups):
            break
        if len({rows[0][column] for rows in groups}) > 1:
            chosen.append(column)
    return [text(rows) for rows in groups]


def words_of(group, groups, same, columns):
    """Words for a figure's name and title: those settings that tell it from other figures with equal `same` columns."""
    first = group[0]
    near = [other[0] for other in groups if all(other[0][column] == first[column] for column in same)]
    differing = [column for column in columns if len({row[column] for row in near}) > 1]
    word = lambda column, value: f"no {column}" if value in (None, "") else f"{value} scaling" if column == "scaling" else f"{column} {value}"  # noqa: E731
    return [word(column.replace("_", " "), first[column]) for column in differing]


def intervals(ax, places, points, scale=1.0, horizontal=False):
    """Bars from the smallest to the largest repeat, where there is a difference to show."""
    for place, point in zip(places, points):
        if point.high > point.low:
            spread = [[(point.median - point.low) * scale], [(point.high - point.median) * scale]]
            at = (point.median * scale, place) if horizontal else (place, point.median * scale)
            ax.errorbar(*at, fmt="none", ecolor="black", capsize=2.5, elinewidth=1, **{"xerr" if horizontal else "yerr": spread})


def caption(figure):
    """What, where, when, which kind, how often, from which code: below every figure, so that it can stand alone."""
    rows = figure.rows
    if not rows:
        return figure.what
    kinds = results.names(rows, "kind")
    device = ", ".join(results.names(rows, "gpu") or (["CPU"] if "cpu" in results.names(rows, "device") else results.names(rows, "device")))
    where = f"{', '.join(results.names(rows, 'host'))} ({device})"
    days = sorted({row["date"][:10] for row in rows})
    counts = [n for panel in figure.panels for series in panel.repeats.values() for n in series]
    often = "" if not counts else f"{min(counts)} repeats" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)} repeats"
    often = often.replace("1 repeats", "1 repeat") if often == "1 repeats" else often
    spread = "the same in each" if counts and max(counts) > 1 and not any(value > 0 for panel in figure.panels for value in panel.spreads) else \
        "median, bars from smallest to largest" if counts and max(counts) > 1 and any(figure.intervals_shown()) else \
        "no interval" if counts and max(counts) == 1 else "median"
    commits = ", ".join(commit[:10] for commit in results.names(rows, "commit")) + (" with local changes" if any(row["dirty"] for row in rows) else "")
    parts = [figure.what, f"Baseline: {figure.baseline}." if figure.baseline else "", f"{' and '.join(kinds).capitalize()} on {where}, "
             f"{days[0] if days[0] == days[-1] else f'{days[0]} to {days[-1]}'}; {often} ({spread}).",
             f"{figure.modelled}." if figure.modelled else "", f"Commit {commits}."]
    left_out = sum(getattr(row, "left_out", 0) for row in {row.file: row for row in rows}.values())
    if left_out:
        parts.append(f"{left_out} unsound rows of the files were left out.")
    return " ".join(part for part in parts if part)


def save(figure, folder, formats=("png", "svg", "pdf")):
    """Writes the figure with its caption below it. Returns the paths."""
    drawn = figure.figure
    width, height = drawn.get_size_inches()
    text = drawn.text(0.06 / width, -0.08 / height, textwrap.fill(caption(figure), int(width * 17)), fontsize=7.5, color="#333333", va="top", linespacing=1.3)
    paths = [folder / f"{figure.name}.{kind}" for kind in formats]
    for path, kind in zip(paths, formats):
        # No time stamp: the same rows give the same bytes.
        drawn.savefig(path, bbox_inches="tight", pad_inches=0.07, metadata={"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind])
    text.remove()
    return paths


def png(figure):
    """The picture alone, as bytes: a page has its own place for the caption."""
    buffer = io.BytesIO()
    figure.figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=0.05, metadata={"Software": None})
    return buffer.getvalue()
