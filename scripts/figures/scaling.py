"""Strong and weak scaling, and where the time of a step goes."""
import functools

import results
from figures import style

PARTS = {"data_wait_s": "data wait", "compute_s": "compute", "exposed_comm_s": "exposed communication", "optimizer_s": "optimiser"}
COLOUR = {"data wait": style.COLOURS[5], "compute": style.COLOURS[0], "exposed communication": style.COLOURS[1], "optimiser": style.COLOURS[3], "other": "#BBBBBB"}
HATCH = {"data wait": "..", "compute": "", "exposed communication": "//", "optimiser": "xx", "other": ""}
SERIES = ("variant", "lesson", "backend", "transport", "nodes", "chapter")


def work(row):
    """The column that stays the same: strong scaling keeps the global batch, weak scaling (and none) the batch per rank."""
    return "global_batch" if row["scaling"] == "strong" else "batch"


def setting(row):
    """What must be equal in one figure."""
    return row["scaling"], row["workload"], row["device"], row["gpu"], row["dtype"], row["threads"], row["kind"], row[work(row)]


def times(rows):
    """[(ranks, Point of seconds, oversubscribed)] of one variant, by ranks."""
    groups = results.grouped(results.runs(rows), lambda row: row["ranks"])
    return [(ranks, results.summary(row["median_s"] for row in groups[ranks]), any(row["oversubscribed"] for row in groups[ranks])) for ranks in sorted(groups)]


def columns_of(rows):
    """What tells two curves apart. One rank has no transport: where all others have the same, it is no difference."""
    transports = {row["transport"] for row in rows if row["ranks"] != 1}
    return tuple(column for column in SERIES if column != "transport" or len(transports) > 1)


def variants(rows):
    """{label: [(ranks, Point, oversubscribed)]}"""
    columns = columns_of(rows)
    groups = list(results.grouped(rows, lambda row: tuple(row[column] for column in columns)).values())
    return dict(zip(style.labels_of(groups, columns), map(times, groups)))


def baseline(series):
    """(label, ranks, Point of seconds): the fastest variant on the fewest ranks. One baseline for all, so that a slow one cannot shine by scaling itself."""
    fewest = min(points[0][0] for points in series.values())
    label = min((name for name, points in series.items() if points[0][0] == fewest), key=lambda name: series[name][0][1].median)
    return label, fewest, series[label][0][1]


def efficiency(scaling, ranks, seconds, base_ranks, base_seconds):
    return base_seconds / seconds * (base_ranks / ranks if scaling == "strong" else 1)


def derived(point, function):
    """A Point of function(seconds). It falls with time, so the slowest repeat gives the lowest value."""
    return results.Point(function(point.median), function(point.high), function(point.low), point.n)


def groups_of(rows):
    """The rows of each figure that have at least two numbers of ranks."""
    chosen = [row for row in rows if row["scaling"] and row["median_s"]]
    return [group for group in results.grouped(chosen, setting).values() if len({row["ranks"] for row in group}) > 1]


def words_of(group, groups):
    """What tells this figure from its neighbours."""
    return style.words_of(group, groups, ("scaling", "workload"), ("dtype", "device", "gpu", "threads", "kind", work(group[0])))


def figures(rows):
    groups = groups_of(rows)
    for group in groups:
        yield functools.partial(draw, group, words_of(group, groups))


def draw(rows, words):
    first = rows[0]
    scaling, workload = first["scaling"], first["workload"] or first["lesson"]
    series = variants(rows)
    base_label, base_ranks, base = baseline(series)
    base_s = base.median
    ranks = sorted({row["ranks"] for row in rows})
    factor, unit = style.seconds_scale([point.high for points in series.values() for _, point, _ in points])
    efficient = lambda n, s: efficiency(scaling, n, s, base_ranks, base_s)  # noqa: E731
    panels = [style.Panel("ranks", f"time per step ({unit})", unit), style.Panel("ranks", "speed-up (times baseline)", "x"),
              style.Panel("ranks", "parallel efficiency (%)", "%")]
    figure, all_axes = style.axes(3, width=3.5, height=3.3)
    handles = []
    for index, (label, points) in enumerate(series.items()):
        hollow = [over for _, _, over in points]
        shown = [[(n, results.Point(p.median * factor, p.low * factor, p.high * factor, p.n)) for n, p, _ in points],
                 [(n, derived(p, lambda s, n=n: efficient(n, s) * n / base_ranks)) for n, p, _ in points],
                 [(n, derived(p, lambda s, n=n: 100 * efficient(n, s))) for n, p, _ in points]]
        for ax, panel, at in zip(all_axes, panels, shown):
            handle = style.draw_series(ax, index, label, at, hollow)
            panel.series[label] = [(n, point.median) for n, point in at]
            panel.note(label, (point for _, point in at))
        handles.append(handle)
    ideal = [[base_s * factor * (base_ranks / n if scaling == "strong" else 1) for n in ranks], [n / base_ranks for n in ranks], [100] * len(ranks)]
    for ax, panel, line in zip(all_axes, panels, ideal):
        style.draw_ideal(ax, ranks, line)
        style.rank_axis(ax, ranks)
        ax.set(xlabel=panel.x_label, ylabel=panel.y_label, ylim=(0, None))
    handles.append(style.ideal_handle())
    if any(over for points in series.values() for _, _, over in points):
        handles.append(style.hollow_handle())
    fixed = f"global batch {first['global_batch']}" if scaling == "strong" else f"batch {first['batch']} per rank"
    title = f"{scaling.capitalize()} scaling of {workload}" + "".join(f", {word}" for word in words)
    figure.suptitle(title, fontsize=10)
    style.legend_below(figure, handles)
    batch = "" if fixed.endswith("None") or "None per" in fixed else f", {fixed}"
    what = f"{title}{batch}, {first['threads']} thread(s) per rank: time per step (slowest rank), speed-up and efficiency."
    named = f"{base_label} on {base_ranks} rank{'s' if base_ranks > 1 else ''}, {base_s * factor:.4g} {unit} per step"
    if base.high > base.low:
        named += f" ({base.low * factor:.4g} to {base.high * factor:.4g}; this spread is not in the bars of speed-up and efficiency)"
    return style.Figure(style.slug(scaling, "scaling", workload, *words), title, what, rows, panels, figure, baseline=named, relative=True,
                        baseline_oversubscribed=series[base_label][0][2], modelled="Dotted: ideal, from the baseline")


def step_groups(rows):
    """Without its compute time, a step is no picture of where the time goes."""
    chosen = [row for row in rows if row["median_s"] and row["compute_s"] is not None]
    return list(results.grouped(chosen, lambda row: (row["chapter"], setting(row))).values())


def step_figures(rows):
    """A stack per variant and number of ranks: where the time of a step goes."""
    groups = step_groups(rows)
    for group in groups:
        yield functools.partial(draw_step, group, style.words_of(group, groups, ("chapter", "workload"), ("scaling", "dtype", "device", "gpu", "threads", "kind", work(group[0]))))


def draw_step(rows, words):
    first, columns = rows[0], columns_of(rows)
    bars = list(results.grouped(rows, lambda row: (row["ranks"], *(row[column] for column in columns))).values())
    bars.sort(key=lambda group: group[0]["ranks"])
    variants_of = results.grouped((group[0] for group in bars), lambda row: tuple(row[column] for column in columns))
    names = dict(zip(variants_of, style.labels_of(list(variants_of.values()), columns)))
    many = len(bars) > 8  # then the labels stand upright, on one line
    labels = [f"{names[tuple(group[0][column] for column in columns)]}{', ' if many else chr(10)}{group[0]['ranks']} rank{'s' if group[0]['ranks'] > 1 else ''}"
              f"{'*' if group[0]['oversubscribed'] else ''}" for group in bars]
    factor, unit = style.seconds_scale([row["median_s"] for row in rows])
    panel = style.Panel("variant and ranks", f"time per step ({unit})", unit)
    wide = 0.28 if many else 0.35 + 0.055 * max(map(len, names.values()))
    figure, (ax,) = style.axes(1, width=max(5.0, 1.0 + len(bars) * wide), height=3.6)
    draw_stacks(ax, bars, panel, factor)
    totals = [step_seconds(group) for group in bars]
    ax.plot(range(len(bars)), [total.median * factor for total in totals], linestyle="none", marker="_", markersize=12, color="black", gid="points:step")
    style.intervals(ax, range(len(bars)), totals, factor)
    panel.note("step", totals)
    ax.set_xticks(range(len(bars)), labels, fontsize=7.5, rotation=90 if many else 0)
    ax.set(xlabel=panel.x_label, ylabel=panel.y_label, ylim=(0, None))
    ax.grid(axis="x", visible=False)
    title = f"Where a step of {first['workload'] or first['lesson']} spends its time" + (f" ({', '.join(words)})" if words else "")
    ax.set_title(title, fontsize=10)
    style.legend_below(figure, ax.get_legend_handles_labels()[0])
    starred = " *: more ranks than cores or GPUs." if any(row["oversubscribed"] for row in rows) else ""
    what = f"{title}: medians of the parts, stacked; the black mark is the whole step (slowest rank).{starred}"
    return style.Figure(style.slug("step", first["chapter"][:2], first["workload"], *words), title, what, rows, [panel], figure)


def draw_stacks(ax, bars, panel, factor):
    """Part upon part. What the parts leave of the step is "other", shown if it is 1% or more."""
    bottom = [0.0] * len(bars)
    for part, word in [*PARTS.items(), ("other", "other")]:
        seconds = [max(0.0, part_seconds(group, part)) for group in bars]
        least = 0.01 if part == "other" else 0.0
        if not any(value > least * step_seconds(group).median for value, group in zip(seconds, bars)):
            continue
        heights = [value * factor for value in seconds]
        ax.bar(range(len(bars)), heights, 0.65, bottom, color=COLOUR[word], hatch=HATCH[word], edgecolor="white", linewidth=0.5, label=word, gid=f"bars:{word}")
        bottom = [a + b for a, b in zip(bottom, heights)]
        panel.series[word] = list(enumerate(heights))


def step_seconds(group):
    return results.summary(row["median_s"] for row in results.runs(group))


def part_seconds(group, part):
    """The median of one part over repeats; "other" is what the parts leave of the step."""
    if part != "other":
        known = [row[part] for row in group if row[part] is not None]
        return results.summary(known).median if known else 0.0
    return step_seconds(group).median - sum(part_seconds(group, name) for name in PARTS)
