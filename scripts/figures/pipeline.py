"""Pipeline: the idle share of a step (the bubble), and the activations that a stage holds, against the number of microbatches."""
import functools
import re

import results
from figures import style


class Quantity:
    """What is drawn. The first word of a row's unit says which: "bubble", "bubble counted" (from the schedule, not from a run), "held p=4 m=8"."""

    def __init__(self, word, title, axis, unit, factor, caption):
        self.word, self.title, self.axis, self.unit, self.factor, self.caption = word, title, axis, unit, factor, caption

    def of(self, row):
        return row["unit"].split(" ")[0] == self.word


BUBBLE = Quantity("bubble", "Pipeline bubble", "bubble (% of step idle)", "%", 100, "idle share of a step")
HELD = Quantity("held", "Activations held by stage 0", "held at most (microbatches)", "microbatches", 1, "most activations held at once by the first stage")


def is_drawn_here(row):
    return BUBBLE.of(row) or HELD.of(row)


def microbatches(row):
    """From the word "m=8" in the workload or unit, else samples per step over samples per microbatch."""
    named = row.parameter("m")
    if named is not None:
        return named
    return row["global_batch"] // row["batch"] if row["batch"] and row["global_batch"] else None


def stages(row):
    return row.parameter("p") or row["ranks"]


def model(row):
    """The workload without the words that a curve runs over."""
    return " ".join(word for word in row["workload"].split() if not re.match(r"[pmv]=\d+$", word))


def setting(row):
    """What must be equal in one figure. Who counts a schedule instead of running it may do so on any number of ranks."""
    ran = row["kind"] != "simulated"
    return (row["lesson"], model(row), stages(row), row["kind"], row["device"], row["gpu"], row["dtype"], *((row["ranks"], row["threads"], row["backend"], row["transport"]) if ran else ()))


def groups_of(rows, quantity=BUBBLE):
    chosen = [row for row in rows if quantity.of(row) and row["measured"] is not None and microbatches(row) is not None]
    return list(results.grouped(chosen, setting).values())


def words_of(group, groups):
    """What tells this figure from its neighbours of as many stages."""
    first = group[0]
    near = [other for other in groups if (stages(other[0]), other[0]["kind"]) == (stages(first), first["kind"])]
    return style.words_of(group, near, ("lesson", "device"), ("gpu", "dtype", "threads", "backend", "transport", *(("ranks",) if first["kind"] != "simulated" else ()))) + \
        ([model(first)] if len({model(other[0]) for other in near}) > 1 else [])


def points_of(rows, quantity=BUBBLE):
    """{schedule: [(m, Point of measured, predicted or None, oversubscribed)]}, in the quantity's unit"""
    made = {}
    chunks = lambda row: row.parameter("v") or 1  # noqa: E731
    several = {variant for variant, group in results.grouped(rows, lambda row: row["variant"]).items() if len(set(map(chunks, group))) > 1}
    label = lambda row: f"{row['variant']}, v={chunks(row)}" if row["variant"] in several else row["variant"]  # noqa: E731
    for schedule, group in results.grouped(rows, label).items():
        by_m = results.grouped(group, microbatches)
        made[schedule] = [(m, results.summary(quantity.factor * row["measured"] for row in by_m[m]),
                           None if by_m[m][0]["predicted"] is None else quantity.factor * by_m[m][0]["predicted"], any(row["oversubscribed"] and row["kind"] == "measured" for row in by_m[m])) for m in sorted(by_m)]
    return made


def figures(rows):
    for quantity in (BUBBLE, HELD):
        groups = [group for group in groups_of(rows, quantity) if len({microbatches(row) for row in group}) > 1]  # one number of microbatches is no curve
        for group in groups:
            yield functools.partial(draw, group, quantity, words_of(group, groups))


def draw(rows, quantity, words):
    first = rows[0]
    panel = style.Panel("microbatches per step", quantity.axis, quantity.unit)
    figure, (ax,) = style.axes(1, width=5.2, height=3.9)
    handles, over = [], False
    for index, (schedule, points) in enumerate(points_of(rows, quantity).items()):
        handles.append(style.draw_series(ax, index, schedule, [(m, point) for m, point, *_ in points], [flag for *_, flag in points]))
        theory = [(m, predicted) for m, _, predicted, _ in points if predicted is not None]
        if theory:
            ax.plot(*zip(*theory), linestyle="none", marker="+", markersize=9, color=style.look(index)["color"], zorder=1, gid=f"theory:{schedule}")
        panel.series[schedule] = [(m, point.median) for m, point, *_ in points]
        panel.note(schedule, (point for _, point, *_ in points))
        over = over or any(flag for *_, flag in points)
    counts = sorted({microbatches(row) for row in rows})
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, [str(m) for m in counts])
    ax.minorticks_off()
    ax.set(xlabel=panel.x_label, ylabel=panel.y_label, ylim=(0, None))
    title = f"{quantity.title}, {stages(first)} stages, {first['lesson']}{''.join(f', {word}' for word in words)} ({first['kind']})"
    ax.set_title(title, fontsize=10)
    style.legend_below(figure, [*handles, style.Line2D([], [], linestyle="none", marker="+", color="#444444", markersize=9, label="theory"),
                                *([style.hollow_handle()] if over else [])])
    waits = {"synthetic": " Stages wait instead of computing, so more ranks than cores do no harm.", "simulated": " Counted from the schedule with F = B = W, not run."}.get(first["kind"], "")
    return style.Figure(style.slug(quantity.word, first["lesson"], f"p{stages(first)}", first["kind"] if first["kind"] != "measured" else "", first["device"] if first["device"] != "cpu" else "", *words),
                        title, f"{title}: {quantity.caption} against microbatches.{waits}", rows, [panel], figure, modelled="Crosses: predicted by the schedule's formula")
