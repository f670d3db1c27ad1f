"""The strategy matrix: one model, one global batch, one number of ranks, every strategy: time, memory, bytes moved, equal loss."""
import re
import statistics

import results
from figures import style

WORD = re.compile(r"(serial|ddp|dp|fsdp|zero[123]|tp|sp|pp|pipeline|horovod)(\d*)$")
# Loss must agree to this much (relative) for two strategies to be the same training: the level that fp32 tensor parallelism keeps.
TOLERANCE = 1e-4


def is_strategy(name):
    """ "tp2+dp2", "zero3", "tp x dp": every word is a known strategy, with or without a factor."""
    words = [word for word in re.split(r"[+x,\s]+", name.lower()) if word]
    return bool(words) and all(WORD.match(word) for word in words)


def is_matrix(row):
    """A row that says what a strategy costs and what loss it reached."""
    return is_strategy(row["variant"]) and not row["scaling"] and row["median_s"] is not None and row["loss"] is not None and \
        (row["peak_bytes"] is not None or row["sent_bytes"] is not None)


def groups_of(rows):
    chosen = [row for row in rows if is_matrix(row)]
    groups = results.grouped(chosen, lambda row: (row["workload"], row["global_batch"], row["ranks"], row["dtype"], row["device"], row["gpu"], row["threads"], row["kind"]))
    return [group for group in groups.values() if len({row["variant"] for row in group}) > 1]


def table(rows):
    """[{strategy, seconds, peak_bytes, sent_bytes, loss, equal, n}], in the order of the file. Loss is compared with the first strategy's."""
    made = []
    for strategy, group in results.grouped(rows, lambda row: row["variant"]).items():
        point = lambda column, group=group: results.summary(row[column] for row in group if row[column] is not None) \
            if any(row[column] is not None for row in group) else None  # noqa: E731
        made.append({"strategy": strategy, "seconds": point("median_s"), "peak_bytes": point("peak_bytes"), "sent_bytes": point("sent_bytes"),
                     "loss": statistics.median(row["loss"] for row in group), "losses": [row["loss"] for row in group]})
    reference = made[0]["loss"]
    for entry in made:
        entry["equal"] = all(abs(loss - reference) <= TOLERANCE * max(abs(reference), 1e-30) for loss in entry["losses"])
    return made


def figures(rows):
    for group in groups_of(rows):
        yield draw(group)


def draw(rows):
    first = rows[0]
    entries = table(rows)
    factor, unit = style.seconds_scale([entry["seconds"].high for entry in entries])
    wanted = [("seconds", factor, "time per step", unit), ("peak_bytes", 2**-20, "peak memory per rank", "MiB"), ("sent_bytes", 2**-20, "bytes moved per rank", "MiB")]
    wanted = [entry for entry in wanted if any(row[entry[0]] for row in entries)]
    figure, all_axes = style.axes(len(wanted), width=3.3, height=1.3 + 0.33 * len(entries))
    panels = []
    for index, (ax, (column, scale, word, unit)) in enumerate(zip(all_axes, wanted)):
        panel = style.Panel(f"{word} ({unit})", "strategy" if index == 0 else "", unit, interval=True)
        at = [(place, entry[column]) for place, entry in enumerate(entries) if entry[column]]
        values = [point.median * scale for _, point in at]
        ax.barh([place for place, _ in at], values, 0.66, color=style.COLOURS[(0, 2, 4)[index]], hatch=("", "//", "..")[index], edgecolor="white", gid=f"bars:{word}")
        style.intervals(ax, [place for place, _ in at], [point for _, point in at], scale, horizontal=True)
        names = [entry["strategy"] + ("" if entry["equal"] else "  (loss differs!)") for entry in entries]
        ax.set_yticks(range(len(entries)), names if index == 0 else [""] * len(entries))
        ax.invert_yaxis()
        ax.set(xlabel=panel.x_label, ylabel=panel.y_label, xlim=(0, None))
        ax.grid(axis="y", visible=False)
        panel.series[word] = [(place, value) for (place, _), value in zip(at, values)]
        panel.repeats[word] = [point.n for _, point in at]
        panels.append(panel)
    over = any(row["oversubscribed"] for row in rows)
    title = f"Strategies for {first['workload']} on {first['ranks']} ranks" + (" (more ranks than cores or GPUs)" if over else "")
    figure.suptitle(title, fontsize=10)
    wrong = [entry["strategy"] for entry in entries if not entry["equal"]]
    agree = f"Loss differs from {entries[0]['strategy']}'s for {', '.join(wrong)}" if wrong else f"All reach the loss of {entries[0]['strategy']} within {TOLERANCE:g}"
    what = f"{title}, global batch {first['global_batch']}. {agree}."
    return style.Figure(style.slug("strategies", first["workload"], f"np{first['ranks']}", first["dtype"], first["device"] if first["device"] != "cpu" else ""), title, what, rows, panels,
                        figure)
