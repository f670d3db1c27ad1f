"""The strategy matrix: one model, one global batch, one number of ranks, every strategy: time, memory, bytes moved, equal loss."""
import functools
import re
import statistics

import results
from figures import style

WORD = re.compile(r"(serial|ddp|dp|fsdp|zero[123]|tp|sp|regather|pp|pipeline|horovod)(\d*)$")
SCHEDULE = re.compile(r"(naive|gpipe|1f1b|interleaved|zb-h1)$")  # how a pipeline runs: a strategy only beside pp
# Loss must agree to this much (relative) for two strategies to be the same training: the level that fp32 tensor parallelism keeps.
TOLERANCE = 1e-4


def is_strategy(name):
    """ "tp2+dp2", "zero3", "tp x dp": every word is a known strategy, with or without a factor."""
    words = [word for word in re.split(r"[+x,\s]+", name.lower()) if word]
    pipelined = any(re.match(r"pp\d*$", word) for word in words)
    return bool(words) and all(WORD.match(word) or pipelined and SCHEDULE.match(word) for word in words)


def is_matrix(row):
    """A row that says what a strategy costs and what loss it reached."""
    return is_strategy(row["variant"]) and not row["scaling"] and row["median_s"] is not None and row["loss"] is not None and \
        (row["peak_bytes"] is not None or row["sent_bytes"] is not None)


def groups_of(rows):
    chosen = [row for row in rows if is_matrix(row)]
    groups = results.grouped(chosen, lambda row: (row["workload"], row["global_batch"], row["ranks"], row["dtype"], row["device"], row["gpu"], row["threads"], row["kind"]))
    return [group for group in groups.values() if len({row["variant"] for row in group}) > 1]


def agrees(entry, loss):
    """In every repeat: one good run among three is no agreement."""
    return all(abs(mine - loss) <= TOLERANCE * max(abs(loss), 1e-30) for mine in entry["losses"])


def common_loss(entries):
    """The loss that most strategies reach; None where no two agree, or where as many agree on another: then nobody can say who is right."""
    followers = [(sum(agrees(other, entry["loss"]) for other in entries), entry["loss"]) for entry in entries]
    most = max(count for count, _ in followers)
    best = sorted(loss for count, loss in followers if count == most)
    return statistics.median_low(best) if most > 1 and best[-1] - best[0] <= 2 * TOLERANCE * abs(best[0]) else None


def table(rows):
    """[{strategy, seconds, peak_bytes, sent_bytes, loss, losses, equal}], in the order of the file. Equal: to the loss that most strategies reach, in every repeat."""
    made = []
    for strategy, group in results.grouped(results.runs(rows), lambda row: row["variant"]).items():
        point = lambda column, group=group: results.summary(row[column] for row in group if row[column] is not None) \
            if any(row[column] is not None for row in group) else None  # noqa: E731
        made.append({"strategy": strategy, "seconds": point("median_s"), "peak_bytes": point("peak_bytes"), "sent_bytes": point("sent_bytes"),
                     "loss": statistics.median(row["loss"] for row in group), "losses": [row["loss"] for row in group]})
    reference = common_loss(made)
    for entry in made:
        entry["equal"] = reference is not None and agrees(entry, reference)
    return made


def refused(rows):
    """Why a strategy has no bar: what trained something else cannot be compared."""
    made, groups = [], groups_of(rows)
    for group in groups:
        entries = table(group)
        sound = next((entry for entry in entries if entry["equal"]), None)
        if sound is None:
            made.append(f"{name_of(group, groups)}: not drawn: no common loss (equal means within {TOLERANCE:g}): {losses_text(entries)}")
            continue
        made += [f"{name_of(group, groups)}: {entry['strategy']} is not shown: its loss is {entry['loss']:.6g}, the others' {sound['loss']:.6g} (equal means within {TOLERANCE:g})"
                 for entry in entries if not entry["equal"]]
    return made


def losses_text(entries):
    return ", ".join(f"{entry['strategy']} {entry['loss']:.6g}" for entry in entries)


def words_of(rows, groups):
    """What tells this figure from its neighbours."""
    return style.words_of(rows, groups, ("workload", "ranks", "dtype", "device"), ("global_batch", "threads", "kind", "gpu"))


def name_of(rows, groups):
    first = rows[0]
    return style.slug("strategies", first["workload"], f"np{first['ranks']}", first["dtype"], first["device"] if first["device"] != "cpu" else "", *words_of(rows, groups))


def figures(rows):
    groups = groups_of(rows)
    for group in groups:
        if any(entry["equal"] for entry in table(group)):  # else there is nothing to compare: refused() says why
            yield functools.partial(draw, group, groups)


def draw(rows, groups):
    first = rows[0]
    entries = table(rows)
    factor, unit = style.seconds_scale([entry["seconds"].high for entry in entries])
    wanted = [("seconds", factor, "time per step", unit), ("peak_bytes", 2**-20, "peak memory per rank", "MiB"), ("sent_bytes", 2**-20, "bytes moved per rank", "MiB")]
    wanted = [entry for entry in wanted if any(row[entry[0]] for row in entries if row["equal"])]
    figure, all_axes = style.axes(len(wanted), width=3.3, height=1.3 + 0.33 * len(entries))
    panels = []
    for index, (ax, (column, scale, word, unit)) in enumerate(zip(all_axes, wanted)):
        panel = style.Panel(f"{word} ({unit})", "strategy" if index == 0 else "", unit)
        at = [(place, entry[column]) for place, entry in enumerate(entries) if entry[column] and entry["equal"]]
        values = [point.median * scale for _, point in at]
        ax.barh([place for place, _ in at], values, 0.66, color=style.COLOURS[(0, 2, 4)[index]], hatch=("", "//", "..")[index], edgecolor="white", gid=f"bars:{word}")
        style.intervals(ax, [place for place, _ in at], [point for _, point in at], scale, horizontal=True)
        for place, point in at:
            ax.annotate(style.number_text(point.median * scale), (point.high * scale, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7.5)
        names = [entry["strategy"] + ("" if entry["equal"] else "  (loss differs)") for entry in entries]
        ax.set_yticks(range(len(entries)), names if index == 0 else [""] * len(entries))
        ax.set(xlabel=panel.x_label, ylabel=panel.y_label, ylim=(len(entries) - 0.4, -0.6), xlim=(0, max(point.high for _, point in at) * scale * 1.22))
        ax.grid(axis="y", visible=False)
        panel.series[word] = [(place, value) for (place, _), value in zip(at, values)]
        panel.note(word, (point for _, point in at))
        panels.append(panel)
    over = any(row["oversubscribed"] for row in rows)
    title = f"Strategies for {first['workload']} on {first['ranks']} ranks" + "".join(f", {word}" for word in words_of(rows, groups)) + (" (more ranks than cores or GPUs)" if over else "")
    figure.suptitle(title, fontsize=10)
    wrong = [entry["strategy"] for entry in entries if not entry["equal"]]
    agree = f"Loss differs for {', '.join(wrong)}: no bars; the others agree within {TOLERANCE:g}" if wrong else f"All reach the same loss within {TOLERANCE:g} (relative)"
    batch = "" if any(word.startswith("global batch") for word in words_of(rows, groups)) else f", global batch {first['global_batch']}"
    what = f"{title}{batch}. {agree}."
    return style.Figure(name_of(rows, groups), title, what, rows, panels, figure)
