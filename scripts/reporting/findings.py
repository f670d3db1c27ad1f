"""Short sentences computed from the rows. Each names its point and, where it is not plainly measured, its kind; none is written by hand."""
import re

import results
from figures import bandwidth, memory, pipeline, predictions, scaling, strategies, style, training

RIVAL = re.compile(r"^mpi\b|mpi_|pytorch|torch|gloo|nccl|c10d|reducer|horovod", re.IGNORECASE)


def kind(rows):
    named = [word for word in results.names(rows, "kind") if word != "measured"]
    return f" ({', '.join(named)})" if named else ""


def ranks(n):
    return f"{n} rank{'s' if n > 1 else ''}"


def overlap(one, other):
    return one.low <= other.high and other.low <= one.high


UNCLEAR = "no clear difference: the intervals overlap"


def compare(ours, rival):
    """How two Points of "more is better" differ: intervals that overlap are no difference."""
    return UNCLEAR if overlap(ours, rival) else f"{ours.median / rival.median:.2g}x"


def leaders(points, words, best=min):
    """Who is the best of {name: Point}: all whose intervals overlap with the best one's, for between those nobody has won. `words`: of one, and of several."""
    first = best(points, key=lambda name: points[name].median)
    near = [name for name in points if name == first or overlap(points[name], points[first])]
    same = all(points[name].low == points[name].high == points[first].median for name in near)
    return f"{first} {words[0]}" if len(near) == 1 else f"{', '.join(near)} {words[1]} ({'all the same' if same else UNCLEAR})"


def scaling_findings(rows):
    made, oversubscribed = [], False
    for group in scaling.groups_of(rows):
        series = scaling.variants(group)
        label, base_ranks, base = scaling.baseline(series)
        shown = {variant: [(n, point) for n, point, over in points if not over and n > base_ranks] for variant, points in series.items()}
        oversubscribed = oversubscribed or any(over for points in series.values() for *_, over in points)
        last = max((points[-1][0] for points in shown.values() if points), default=None)
        at_last = {variant: points[-1][1] for variant, points in shown.items() if points and points[-1][0] == last}
        if not at_last:
            continue
        best, worst = (pick(at_last, key=lambda variant: at_last[variant].median) for pick in (min, max))
        kept = lambda variant: f"{100 * scaling.efficiency(group[0]['scaling'], last, at_last[variant].median, base_ranks, base.median):.0f}%"  # noqa: E731
        text = f"{group[0]['scaling'].capitalize()} scaling of {group[0]['workload'] or group[0]['lesson']}: at {ranks(last)} {best} keeps {kept(best)} efficiency"
        if worst != best:
            text += f", {worst} {kept(worst)}" + (f", {UNCLEAR}" if overlap(at_last[best], at_last[worst]) else "")
        made.append(f"{text} (baseline: {label} on {ranks(base_ranks)}){kind(group)}.")
    if oversubscribed:
        made.append("Some points had more ranks than cores or GPUs: they show that the program is right there, not how it scales.")
    return made


def exposed_share(rows):
    """(ranks, share of the step, oversubscribed) at the largest number of ranks that is not oversubscribed (or, failing that, that is); or None."""
    several = [row for row in rows if row["ranks"] > 1 and row["exposed_comm_s"] is not None]
    fair = [row for row in several if not row["oversubscribed"]] or several
    if not fair:
        return None
    n = max(row["ranks"] for row in fair)
    at = [row for row in fair if row["ranks"] == n]
    return n, scaling.part_seconds(at, "exposed_comm_s") / scaling.step_seconds(at).median, at[0]["oversubscribed"]


def step_findings(rows):
    made = []
    for group in scaling.step_groups(rows):
        shares = {variant: exposed_share(mine) for variant, mine in results.grouped(group, lambda row: row["variant"]).items()}
        for n, over in sorted({(share[0], share[2]) for share in shares.values() if share}):
            texts = [f"{max(0.0, 100 * share[1]):.0f}% ({variant})" for variant, share in shares.items() if share and (share[0], share[2]) == (n, over)]
            where = f"{group[0]['workload'] or group[0]['lesson']}" + (f", {group[0]['scaling']} scaling," if group[0]["scaling"] else "")
            made.append(f"At {ranks(n)}{' (oversubscribed)' if over else ''} {where} loses {', '.join(texts)} to exposed communication{kind(group)}.")
    return made


def bandwidth_findings(rows):
    made = []
    for group in bandwidth.groups_of(rows):
        series = bandwidth.series_of(group)
        size = max(points[-1][0] for points in series.values())
        # A bound is no contender: nobody can reach it, and nobody does.
        at = {label: points[-1][1] for label, points in series.items() if points[-1][0] == size and "(bound)" not in label}
        over = ", oversubscribed" if any(row["oversubscribed"] for row in group) else ""
        best = lambda labels: max(labels, key=lambda label: at[label].median, default=None)  # noqa: E731
        ours, rival = best([label for label in at if not RIVAL.search(label)]), best([label for label in at if RIVAL.search(label)])
        where = f"{group[0]['workload'] or group[0]['lesson']} of {style.bytes_text(size)} on {ranks(group[0]['ranks'])}{over}"
        if ours and rival:
            made.append(f"{where}: {ours} reaches {at[ours].median:.3g} GB/s, the best rival ({rival}) {at[rival].median:.3g} GB/s: {compare(at[ours], at[rival])}{kind(group)}.")
        elif ours or rival:
            made.append(f"{where}: {leaders(at, ('is the fastest', 'are the fastest'), max)}, with {at[ours or rival].median:.3g} GB/s{kind(group)}.")
    return made


def prediction_findings(rows):
    return [f"{group[0]['lesson']}: prediction and measurement differ by {100 * predictions.median_error(group):.1f}% in the median "
            f"({sum(map(len, predictions.points_of(group).values()))} points, in {group[0]['unit'] or 'no unit'}){kind(group)}." for group in predictions.groups_of(rows)]


def bubble_findings(rows):
    made, counted = [], []
    for group in pipeline.groups_of(rows):
        gaps = [(abs(point.median - predicted), schedule, m, over) for schedule, points in pipeline.points_of(group).items() for m, point, predicted, over in points if predicted is not None]
        if gaps:
            gap, schedule, m, over = max(gaps)
            if gap < 0.05 and group[0]["kind"] == "simulated":
                counted.append(str(pipeline.stages(group[0])))
                continue
            made.append(f"Pipeline of {pipeline.stages(group[0])} stages: the bubble differs from theory by {gap:.1f} points at most ({schedule}, {m} microbatches{', oversubscribed' if over else ''}){kind(group)}.")
    if counted:
        made.append(f"Pipelines of {', '.join(counted)} stages: the bubble counted from the schedule is the formula's (simulated).")
    return made


def memory_findings(rows):
    made = []
    for group in memory.groups_of(rows):
        bars, counts = memory.bars_of(group)
        at = {variant: by_ranks[counts[-1]] for variant, by_ranks in bars.items() if counts[-1] in by_ranks}
        if len(at) > 1:
            least, most = (pick(at, key=lambda variant: at[variant].median) for pick in (min, max))
            share = UNCLEAR if overlap(at[least], at[most]) else f"{100 * at[least].median / at[most].median:.0f}%"
            made.append(f"{group[0]['workload'] or group[0]['lesson']} on {ranks(counts[-1])}: {least} holds {at[least].median:.3g} MiB per rank, {most} {at[most].median:.3g} MiB "
                        f"({share}){kind(group)}.")
    return made


def ladder_findings(rows):
    made = []
    for group in training.ladder_groups(rows):
        rungs, gains = training.rungs_of(group), training.gains_of(group)
        base, kept = rungs[0][0], gains.pop("all kept", None)
        lost = [name for name, gain in gains.items() if gain.high < 1]
        unclear = [name for name, gain in gains.items() if gain.low <= 1 <= gain.high]
        if not kept:
            text = f"no gains recorded, only rates: the fastest is {max(rungs, key=lambda rung: rung[1].median)[0]}"
        elif kept.low <= 1:
            text = f"what was kept is not clearly faster than {base}"
        else:
            text = f"{kept.median:.2f}x over {base} with all that was kept"
        made.append(f"One device, {group[0]['workload']}: {text}" + (f"; {', '.join(lost)} lost" if lost else "")
                    + (f"; no clear gain or loss by {', '.join(unclear)}" if unclear else "") + f"{kind(group)}.")
    return made


def precision_findings(rows):
    made = []
    for group in training.precision_groups(rows):
        last = max(row["iterations"] or 0 for row in group)
        by_dtype = results.grouped([row for row in group if (row["iterations"] or 0) == last], lambda row: row["dtype"])
        full = next((name for name in by_dtype if name in ("float32", "fp32", "float")), None)
        if full and len(by_dtype) > 1:
            base = results.summary(row["loss"] for row in by_dtype[full]).median
            texts = [f"{name} {results.summary(row['loss'] for row in more).median - base:+.3g}" for name, more in by_dtype.items() if name != full]
            made.append(f"{group[0]['workload'] or group[0]['lesson']}: last loss {base:.4g} in {full}; {', '.join(texts)}{kind(group)}.")
    return made


def strategy_findings(rows):
    made = []
    for group in strategies.groups_of(rows):
        entries = strategies.table(group)
        text = f"{group[0]['workload']} on {ranks(group[0]['ranks'])}{', oversubscribed' if group[0]['oversubscribed'] else ''}"
        equal = [entry for entry in entries if entry["equal"]]
        if not equal:
            made.append(f"{text}: NO COMMON LOSS ({strategies.losses_text(entries)}): nothing can be compared{kind(group)}.")
            continue
        parts = []
        for column, words in (("seconds", ("is the fastest", "are the fastest")), ("peak_bytes", ("holds the least memory", "hold the least memory")),
                              ("sent_bytes", ("moves the fewest bytes", "move the fewest bytes"))):
            known = {entry["strategy"]: entry[column] for entry in equal if entry[column]}
            if known:
                parts.append(leaders(known, words))
        wrong = [entry["strategy"] for entry in entries if not entry["equal"]]
        made.append(f"{text}: {', '.join(parts)}; " + (f"LOSS DIFFERS for {', '.join(wrong)}" if wrong else "all reach the same loss") + f"{kind(group)}.")
    return made


FINDERS = {"scaling": scaling_findings, "step": step_findings, "bandwidth": bandwidth_findings, "prediction": prediction_findings, "bubble": bubble_findings,
           "memory": memory_findings, "ladder": ladder_findings, "precision": precision_findings, "strategies": strategy_findings}
