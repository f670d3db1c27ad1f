"""The ladder of one device, and loss by precision."""
import functools

import results
from figures import style


# What must be equal in one figure of losses.
PRECISION = "chapter lesson workload ranks device gpu kind threads batch global_batch".split()


def ladder_groups(rows):
    chosen = [row for row in rows if row["lesson"].endswith("ladder") and (row["rate"] or row["unit"] == "gain")]
    groups = results.grouped(chosen, lambda row: (row["workload"], row["device"], row["gpu"], row["rate_unit"], row["kind"], row["threads"])).values()
    return [group for group in groups if any(row["rate"] for row in group)]


def rungs_of(rows):
    """[(rung, Point of rate)] in the order of the file."""
    return [(variant, results.summary(row["rate"] for row in group)) for variant, group in results.grouped((row for row in rows if row["rate"]), lambda row: row["variant"]).items()]


def gains_of(rows):
    """{rung: Point of its gain} over what was kept below it ("all kept": over the baseline), as the program timed them by turns."""
    return {variant: results.summary(row["measured"] for row in group)
            for variant, group in results.grouped((row for row in rows if row["unit"] == "gain"), lambda row: row["variant"]).items()}


def ladder_figures(rows):
    groups = ladder_groups(rows)
    for group in groups:
        yield functools.partial(draw_ladder, group, style.words_of(group, groups, ("workload", "device"), ("gpu", "rate_unit", "kind", "threads")))


def draw_ladder(rows, words):
    first = rows[0]
    rungs, gains = rungs_of(rows), gains_of(rows)
    base = rungs[0][1].median
    panel = style.Panel(f"throughput ({first['rate_unit']})", "rung (each adds one change)", first["rate_unit"])
    figure, (ax,) = style.axes(1, width=6.0, height=0.9 + 0.38 * len(rungs))
    places = range(len(rungs))
    values = [point.median for _, point in rungs]
    colours = [style.COLOURS[1] if name in gains and gains[name].median < 1 else style.COLOURS[0] for name, _ in rungs]
    hatches = ["" if colour == style.COLOURS[0] else "//" for colour in colours]
    ax.barh(places, values, 0.66, color=colours, hatch=hatches, edgecolor="white", gid="bars:rungs")
    style.intervals(ax, places, [point for _, point in rungs], horizontal=True)
    for i, (name, point) in enumerate(rungs):
        gain = f"  ({gains[name].median:.2f}x)" if name in gains else ""
        ax.annotate(f"{style.number_text(point.median)}{gain}", (point.high, i), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
    ax.set_yticks(places, [name for name, _ in rungs])
    ax.invert_yaxis()
    ax.set(xlabel=panel.x_label, ylabel=panel.y_label, xlim=(0, max(p.high for _, p in rungs) * 1.42))
    ax.grid(axis="y", visible=False)
    title = f"One device, rung by rung: {first['workload'] or first['lesson']}" + "".join(f", {word}" for word in words)
    ax.set_title(title, fontsize=10)
    panel.series["rungs"] = list(zip(places, values))
    panel.note("rungs", (point for _, point in rungs))
    what = f"{title}: throughput." + (" Each rung adds one change to what its run had kept so far and was timed by turns with that: the factor is the median gain, hatched below 1."
                                       " The factor of all that was kept is over the baseline." if gains else "")
    return style.Figure(style.slug("ladder", first["workload"], first["device"], *words), title, what, rows, [panel], figure,
                        baseline=f"{rungs[0][0]}, {style.number_text(base)} {first['rate_unit']}", relative=bool(gains),
                        baseline_oversubscribed=any(row["oversubscribed"] for row in rows if row["variant"] == rungs[0][0]))


def precision_groups(rows):
    chosen = [row for row in rows if row["loss"] is not None and row["dtype"]]
    groups = results.grouped(chosen, lambda row: tuple(row[column] for column in PRECISION)).values()
    return [group for group in groups if len({row["dtype"] for row in group}) > 1]


def precision_figures(rows):
    groups = precision_groups(rows)
    for group in groups:
        yield functools.partial(draw_precision, group, style.words_of(group, groups, ("lesson", "workload", "ranks"), PRECISION))


def draw_precision(rows, words):
    first = rows[0]
    groups = list(results.grouped(rows, lambda row: (row["dtype"], row["variant"])).values())
    labels = style.labels_of(groups, ("dtype", "variant"))
    curves = len({row["iterations"] for row in rows}) > 1
    panel = style.Panel("training step" if curves else "precision", "loss", "(no unit)")
    figure, (ax,) = style.axes(1, width=5.2, height=3.7)
    handles = []
    for index, (label, group) in enumerate(zip(labels, groups)):
        steps = results.grouped(group, lambda row, at=index: (row["iterations"] or 0) if curves else at)
        points = [(step, results.summary(row["loss"] for row in steps[step])) for step in sorted(steps)]
        handles.append(style.draw_series(ax, index, label, points, [any(row["oversubscribed"] for row in steps[step]) for step, _ in points]))
        panel.series[label] = [(step, point.median) for step, point in points]
        panel.note(label, (point for _, point in points))
    if not curves:
        ax.set_xticks(range(len(labels)), labels, fontsize=8)
        ax.margins(x=0.2)
    ax.set(xlabel=panel.x_label, ylabel="loss")
    title = f"Loss by precision, {first['workload'] or first['lesson']}" + "".join(f", {word}" for word in words)
    ax.set_title(title, fontsize=10)
    style.legend_below(figure, [*handles, *([style.hollow_handle()] if any(row["oversubscribed"] for row in rows) else [])])
    return style.Figure(style.slug("precision", first["lesson"], first["workload"], f"np{first['ranks']}", *words), title,
                        f"{title}, {first['ranks']} rank{'s' if first['ranks'] > 1 else ''}.", rows, [panel], figure)
