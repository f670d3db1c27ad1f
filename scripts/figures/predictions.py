"""What a formula said, against what a run gave: on the diagonal they agree."""
import functools
import math
import statistics

import results
from figures import pipeline, style


def groups_of(rows):
    chosen = [row for row in rows if row["predicted"] is not None and row["measured"] is not None and row["predicted"] > 0 and row["measured"] > 0
              and not pipeline.is_drawn_here(row)]
    return list(results.grouped(chosen, lambda row: (row["chapter"], row["lesson"], row["unit"], row["kind"])).values())


def points_of(rows):
    """{variant: [(predicted, Point of measured)]}: repeats of one setting are one point."""
    made = {}
    for group in results.grouped(rows, results.setting).values():
        predicted = statistics.median(row["predicted"] for row in group)
        made.setdefault(group[0]["variant"] or group[0]["lesson"], []).append((predicted, results.summary(row["measured"] for row in group), group))
    return made


def median_error(rows):
    """Median of |measured - predicted| / predicted over all points."""
    return statistics.median(abs(point.median - predicted) / predicted for points in points_of(rows).values() for predicted, point, _ in points)


def figures(rows):
    for group in groups_of(rows):
        yield functools.partial(draw, group)


def readable_ticks(ax, unit, low, high):
    """Bytes and seconds as people write them, at round places: 256 KiB, 2 ms."""
    text = style.bytes_text if "byte" in unit else style.seconds_text if unit.split("/")[0] == "s" else None
    if text is None:
        return
    base = 2.0 if "byte" in unit else 10.0
    powers = range(math.floor(math.log(low, base)), math.ceil(math.log(high, base)) + 1)
    steps = (1,) if base == 2 else (1, 2, 5) if high > 20 * low else (1, 1.5, 2, 3, 4, 5, 7)
    places = [step * base**power for power in powers for step in steps if low <= step * base**power <= high]
    places = places[::-(-len(places) // 7)]
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(places, [text(place) for place in places])
        axis.set_ticks([], minor=True)
    ax.tick_params(axis="x", labelsize=8)


def draw(rows):
    first = rows[0]
    unit = first["unit"] or "no unit"
    panel = style.Panel(f"predicted ({unit})", f"measured ({unit})", first["unit"])
    figure, (ax,) = style.axes(1, width=5.0, height=4.4)
    handles, over, panel_highs = [], False, [point.high for points in points_of(rows).values() for _, point, _ in points]
    for index, (label, points) in enumerate(points_of(rows).items()):
        sign = style.look(index)
        for predicted, point, group in points:
            hollow = any(row["oversubscribed"] for row in group)
            over = over or hollow
            ax.errorbar(predicted, point.median, yerr=[[point.median - point.low], [point.high - point.median]], fmt="none", ecolor=sign["color"], elinewidth=1, capsize=2)
            ax.plot(predicted, point.median, linestyle="none", marker=sign["marker"], markersize=5.5, markeredgecolor=sign["color"],
                    markerfacecolor="white" if hollow else sign["color"], gid=f"points:{label}")
        panel.series[label] = [(predicted, point.median) for predicted, point, _ in points]
        panel.note(label, (point for _, point, _ in points))
        handles.append(style.Line2D([], [], linestyle="none", marker=sign["marker"], color=sign["color"], label=label))
    ends = [value for points in panel.series.values() for pair in points for value in pair]
    low, high = min(ends) / 1.5, max([*ends, *panel_highs]) * 1.5
    ax.fill_between([low, high], [low * 0.8, high * 0.8], [low * 1.2, high * 1.2], color="#EEEEEE", zorder=0, linewidth=0)
    style.draw_ideal(ax, [low, high], [low, high])
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel=panel.x_label, ylabel=panel.y_label)
    readable_ticks(ax, unit, low, high)
    title = f"Prediction and measurement, {first['lesson']}"
    ax.set_title(title, fontsize=10)
    style.legend_below(figure, [*handles, style.ideal_handle("equal; band: within 20%"), *([style.hollow_handle()] if over else [])])
    what = f"{title}: each point is one setting; median error {100 * median_error(rows):.1f}%."
    return style.Figure(style.slug("prediction", first["chapter"][:2], first["lesson"], first["unit"], first["kind"] if first["kind"] != "measured" else ""), title, what, rows,
                        [panel], figure, modelled="x: predicted by a formula; y: from the run")
