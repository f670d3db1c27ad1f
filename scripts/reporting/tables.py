"""Tables as data; html.py, latex.py and markdown.py give them their form."""
import dataclasses
import pathlib
import re
import socket

import results
from figures import bandwidth, scaling, strategies, style
from reporting import published


@dataclasses.dataclass
class Table:
    title: str
    header: tuple
    rows: list
    note: str = ""


def interval(point, scale=1.0, digits=3):
    if point is None:
        return ""
    if point.high == point.low:
        return f"{point.median * scale:.{digits}g}"
    return f"{point.median * scale:.{digits}g} ({point.low * scale:.{digits}g} to {point.high * scale:.{digits}g})"


def machine(rows):
    """Where and with what, from the rows; the CPU's name only if the report is made on that host."""
    listed = lambda column: ", ".join(str(value) for value in results.names(rows, column))  # noqa: E731
    entries = [("host", listed("host")), ("device", listed("gpu") or listed("device")), ("nodes", listed("nodes")), ("processor", processor(rows)), ("driver", listed("driver")),
               ("LibTorch", listed("torch")), ("MPI", listed("mpi")), ("NCCL", listed("nccl")), ("transport", listed("transport")), ("threads per rank", listed("threads")),
               ("commit", listed("commit") + (" (with local changes)" if any(row["dirty"] for row in rows) else "")), ("kind", listed("kind")),
               ("measured", f"{min(row['date'] for row in rows)} to {max(row['date'] for row in rows)}"), ("rows", f"{len(rows)} from {len({row.file for row in rows})} files")]
    return Table("The machine and the settings", ("what", "value"), [entry for entry in entries if entry[1]])


def processor(rows):
    if results.names(rows, "host") != [socket.gethostname()]:
        return ""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    name = re.search(r"model name\s*:\s*(.*)", text)
    return f"{len(re.findall(r'^processor', text, re.MULTILINE))} x {name.group(1) if name else 'unnamed'} (as seen when this report was made)"


def scaling_table(group, words):
    series = scaling.variants(group)
    label, base_ranks, base = scaling.baseline(series)
    first, base_s = group[0], base.median
    factor, unit = style.seconds_scale([point.high for points in series.values() for _, point, _ in points])
    made = []
    for variant, points in series.items():
        for n, point, over in points:
            efficient = scaling.efficiency(first["scaling"], n, point.median, base_ranks, base_s)
            made.append((variant, f"{n}{'*' if over else ''}", interval(point, factor), f"{efficient * n / base_ranks:.2f}", f"{100 * efficient:.0f}%", str(point.n)))
    return Table(f"{first['scaling'].capitalize()} scaling of {', '.join([first['workload'] or first['lesson'], *words])}", ("variant", "ranks", f"time per step ({unit})", "speed-up", "efficiency", "n"), made,
                 f"Median (smallest to largest) of n repeats. Baseline: {label} on {base_ranks} rank(s), {base_s * factor:.4g} {unit}. * more ranks than cores or GPUs. {kinds(group)}")


def kinds(group):
    return f"{' and '.join(results.names(group, 'kind')).capitalize()}."


def bandwidth_table(group):
    series = bandwidth.series_of(group)
    largest = max(points[-1][0] for points in series.values())
    smallest = min(points[0][0] for points in series.values())
    made = []
    for label, points in series.items():
        at = {size: point for size, point, _ in points}
        made.append((label, interval(at.get(smallest)), interval(at.get(largest)), str(min(point.n for _, point, _ in points))))
    first = group[0]
    return Table(f"Bus bandwidth of {first['workload'] or first['lesson']} on {first['ranks']} ranks (GB/s)", ("variant", style.bytes_text(smallest), style.bytes_text(largest), "n"), made,
                 f"Median (smallest to largest) of n repeats. {kinds(group)}" + (" More ranks than cores or GPUs." if any(row["oversubscribed"] for row in group) else ""))


def strategy_table(group, words):
    first = group[0]
    entries = strategies.table(group)
    common = any(entry["equal"] for entry in entries)
    factor, unit = style.seconds_scale([entry["seconds"].high for entry in entries])
    made = [(entry["strategy"], interval(entry["seconds"], factor), interval(entry["peak_bytes"], 2**-20), interval(entry["sent_bytes"], 2**-20), f"{entry['loss']:.6g}",
             "equal" if entry["equal"] else "DIFFERS" if common else "NO COMMON LOSS", str(entry["seconds"].n)) for entry in entries]
    return Table(f"Strategies for {first['workload']} on {first['ranks']} ranks, global batch {first['global_batch']}{''.join(f', {word}' for word in words if not word.startswith('global batch'))}",
                 ("strategy", f"time per step ({unit})", "peak memory per rank (MiB)", "moved per rank (MiB)", "loss", "against the others", "n"), made,
                 f"Loss counts as equal within {strategies.TOLERANCE:g} (relative), in every repeat. {kinds(group)}" + (" More ranks than cores or GPUs." if first["oversubscribed"] else ""))


def result_tables(family, rows):
    """The tables of one family of figures."""
    if family == "bandwidth":
        return list(map(bandwidth_table, bandwidth.groups_of(rows)))
    module, table = {"scaling": (scaling, scaling_table), "strategies": (strategies, strategy_table)}.get(family, (None, None))
    groups = module.groups_of(rows) if module else []
    return [table(group, module.words_of(group, groups)) for group in groups]


def published_table():
    return Table("What others published", published.HEADER, list(published.TABLE), "Not measured here: other machines, other software. For orientation only. † as noted by this project, not looked up again for this table.")
