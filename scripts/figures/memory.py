"""Peak memory per rank, by strategy."""
import functools

import results
from figures import pipeline, scaling, strategies, style

MIB = 2**20


def groups_of(rows):
    # What a pipeline's stages hold is counted in microbatches, in figures of its own.
    chosen = [row for row in rows if row["peak_bytes"] and not strategies.is_matrix(row) and not pipeline.is_drawn_here(row)]
    groups = results.grouped(chosen, lambda row: (row["chapter"], scaling.setting(row))).values()
    # Several variants, and something to see: bars that are all alike (runs that only serve as a reference) are no figure.
    return [group for group in groups if len({row["variant"] for row in group}) > 1 and len({row["peak_bytes"] for row in group}) > 1]


def bars_of(rows):
    """({variant: {ranks: Point of MiB}}, ranks)"""
    columns = scaling.columns_of(rows)
    groups = list(results.grouped(rows, lambda row: tuple(row[column] for column in columns)).values())
    made = {label: {ranks: results.summary(row["peak_bytes"] / MIB for row in more) for ranks, more in results.grouped(results.runs(group), lambda row: row["ranks"]).items()}
            for label, group in zip(style.labels_of(groups, columns), groups)}
    return made, sorted({row["ranks"] for row in rows})


def figures(rows):
    groups = groups_of(rows)
    for group in groups:
        yield functools.partial(draw, group, style.words_of(group, groups, ("chapter", "workload", "dtype", "device"), ("scaling", "gpu", "threads", "kind", scaling.work(group[0]))))


def draw(rows, words):
    first = rows[0]
    bars, ranks = bars_of(rows)
    panel = style.Panel("strategy", "peak memory per rank (MiB)", "MiB")
    width = 0.8 / len(ranks)
    figure, (ax,) = style.axes(1, width=max(5.0, 0.5 + 0.32 * len(bars) * max(2.5, len(ranks))), height=3.8)
    for index, n in enumerate(ranks):
        at = [(place + (index - (len(ranks) - 1) / 2) * width, by_ranks[n]) for place, by_ranks in enumerate(bars.values()) if n in by_ranks]
        over = any(row["oversubscribed"] for row in rows if row["ranks"] == n)
        label = f"{n} rank{'s' if n > 1 else ''}{'*' if over else ''}"
        ax.bar([x for x, _ in at], [point.median for _, point in at], width * 0.92, color=style.COLOURS[index % len(style.COLOURS)], edgecolor="white",
               hatch=style.HATCHES[index % len(style.HATCHES)], label=label, gid=f"bars:{label}")
        style.intervals(ax, [x for x, _ in at], [point for _, point in at])
        panel.series[label] = [(x, point.median) for x, point in at]
        panel.note(label, (point for _, point in at))
    ax.set_xticks(range(len(bars)), list(bars), fontsize=8)
    ax.set(xlabel=panel.x_label, ylabel=panel.y_label, ylim=(0, None))
    ax.grid(axis="x", visible=False)
    title = f"Peak memory per rank, {first['workload'] or first['lesson']}" + (f" ({', '.join(words)})" if words else "")
    ax.set_title(title, fontsize=10)
    style.legend_below(figure, ax.get_legend_handles_labels()[0])
    starred = " *: more ranks than cores or GPUs." if any(row["oversubscribed"] for row in rows) else ""
    return style.Figure(style.slug("memory", first["chapter"][:2], first["workload"], first["dtype"], first["device"] if first["device"] != "cpu" else "", *words), title,
                        f"{title}: the largest number of bytes held at once, as the counting allocator saw it.{starred}", rows, [panel], figure)
