"""Bus bandwidth against message size: every algorithm and every rival of one operation in one picture."""
import functools

import results
from figures import style

SERIES = ("variant", "backend", "transport", "lesson", "dtype")


IN_PLACE = ", in place"


def groups_of(rows):
    """One group per figure. What was measured both ways is drawn out of place only: twice as many lines would say little more."""
    chosen = [row for row in rows if row["bytes"] and row["busbw_GBs"]]
    both = {(row["workload"], row["ranks"], row["variant"]) for row in chosen}
    chosen = [row for row in chosen if (row["workload"], row["ranks"], row["variant"].removesuffix(IN_PLACE)) not in both or not row["variant"].endswith(IN_PLACE)]
    return list(results.grouped(chosen, lambda row: (row["workload"], row["ranks"], row["nodes"], row["device"], row["gpu"], row["kind"])).values())


def series_of(rows):
    """{label: [(bytes, Point of GB/s, oversubscribed)]}"""
    groups = list(results.grouped(rows, lambda row: tuple(row[column] for column in SERIES)).values())
    made = {}
    for label, group in zip(style.labels_of(groups, SERIES), groups):
        sizes = results.grouped(group, lambda row: row["bytes"])
        made[label] = [(size, results.summary(row["busbw_GBs"] for row in sizes[size]), any(row["oversubscribed"] for row in sizes[size])) for size in sorted(sizes)]
    return made


def figures(rows):
    for group in groups_of(rows):
        yield functools.partial(draw, group)


def draw(rows):
    first = rows[0]
    panel = style.Panel("message size (bytes)", "bus bandwidth (GB/s)", "GB/s")
    figure, (ax,) = style.axes(1, width=6.0, height=4.2)
    handles, over = [], False
    for index, (label, points) in enumerate(series_of(rows).items()):
        handles.append(style.draw_series(ax, index, label, [(size, point) for size, point, _ in points], [flag for *_, flag in points]))
        panel.series[label] = [(size, point.median) for size, point, _ in points]
        panel.note(label, (point for _, point, _ in points))
        over = over or any(flag for *_, flag in points)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    sizes = sorted({row["bytes"] for row in rows})
    if len(sizes) <= 8:
        ax.set_xticks(sizes)
        ax.minorticks_off()
    ax.xaxis.set_major_formatter(lambda value, _: style.bytes_text(value))
    ax.tick_params(axis="x", labelsize=8)
    ax.set(xlabel=panel.x_label, ylabel=panel.y_label)
    if over:
        handles.append(style.hollow_handle())
    title = f"{first['workload'] or first['lesson']} on {first['ranks']} ranks" + (f", {first['nodes']} nodes" if (first["nodes"] or 1) > 1 else "")
    ax.set_title(title, fontsize=10)
    style.legend_below(figure, handles)
    transports = ", ".join(name for name in results.names(rows, "transport") if name != "none") or "not named"
    what = f"Bus bandwidth (as nccl-tests defines it) of {title}, against message size. Transport: {transports}."
    return style.Figure(style.slug("bandwidth", first["workload"], f"np{first['ranks']}", f"nodes{first['nodes']}" if (first["nodes"] or 1) > 1 else "",
                                   first["device"] if first["device"] != "cpu" else "", first["kind"] if first["kind"] != "measured" else ""),
                        f"Bus bandwidth of {title}", what, rows, [panel], figure)
