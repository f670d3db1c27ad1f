"""Test data in the format of the result files. Nothing here was measured: host and commit say so, and files are temporary."""
import csv
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import results  # noqa: E402

HOST, COMMIT = "test-data", "0testdata0"
BASE = dict(chapter="03_data_parallel", lesson="bench_scaling", kind="measured", device="cpu", backend="mpi", transport="shared memory", nodes=1,
            ranks=1, threads=1, oversubscribed="false", dtype="float32", run_id="r1", repeat=1, commit=COMMIT, dirty="false", torch="2.14.1",
            mpi="Open MPI 4.1.4", date="2025-03-01T12:00:00Z", host=HOST)


def row(**cells):
    unknown = set(cells) - set(results.COLUMNS)
    assert not unknown, unknown
    return {name: {**BASE, **cells}.get(name, "") for name in results.COLUMNS}


def write(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, results.COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return pathlib.Path(path)


def repeats(n=3, **cells):
    """n repeats of one measurement; times and rates differ by a few per cent, as real ones do."""
    made = []
    for repeat in range(1, n + 1):
        wobble = 1 + 0.04 * (repeat - (n + 1) / 2)
        noisy = {name: value * (wobble if name.endswith("_s") else 1 / wobble)
                 for name, value in cells.items() if name.endswith("_s") or name in ("rate", "busbw_GBs", "algbw_GBs")}
        made.append(row(**{**cells, **noisy, "repeat": repeat, "run_id": f"r{repeat}"}))
    return made


def scaling(kind="strong", workload="resnet18", ranks=(1, 2, 4), cores=2, base=0.40, serial=0.06, variants=("overlapped", "naive"), **cells):
    made = []
    for v, variant in enumerate(variants):
        for n in ranks:
            part = 1 / n if kind == "strong" else 1
            compute = base * 0.9 * part
            exposed = base * serial * (1 + v) * (n - 1) / n
            step = compute + exposed + base * 0.06 * part + base * 0.04 * part
            batch = 64 // n if kind == "strong" else 32
            made += repeats(variant=variant, workload=workload, scaling=kind, ranks=n, oversubscribed=str(n > cores).lower(), batch=batch,
                            global_batch=batch * n, iterations=20, median_s=step, p95_s=step * 1.1, rate=batch * n / step, rate_unit="samples/s",
                            data_wait_s=base * 0.04 * part, compute_s=compute, exposed_comm_s=exposed, optimizer_s=base * 0.05 * part, **cells)
    return made


def bandwidth(ranks=2, operation="all_reduce", oversubscribed="false"):
    """Variant, latency in seconds, bandwidth in bytes/s."""
    made = []
    for variant, latency, speed in (("ring", 4e-6, 2.0e9), ("rabenseifner", 3e-6, 2.2e9), ("shared memory", 1.1e-6, 4.3e9),
                                    ("registered memory", 1.0e-6, 7.6e9), ("MPI_Allreduce", 1.3e-6, 1.8e9), ("gloo", 3e-4, 0.95e9)):
        for power in range(3, 27, 3):
            size = 2**power
            time = latency + size / speed
            factor = 2 * (ranks - 1) / ranks
            made += repeats(chapter="02_message_passing", lesson="bench_collectives", variant=variant, workload=operation, ranks=ranks, bytes=size,
                            oversubscribed=oversubscribed, backend="gloo" if variant == "gloo" else "mpi", iterations=50, median_s=time, p95_s=time * 1.2,
                            algbw_GBs=size / time / 1e9, busbw_GBs=factor * size / time / 1e9)
    return made


def predictions():
    made = []
    for i, size in enumerate((1024, 65536, 1 << 20, 1 << 24)):
        for variant in ("ring", "recursive doubling"):
            predicted = (4e-6 + size / 2e9) * (1.3 if variant == "ring" else 1)
            made += [row(chapter="02_message_passing", lesson="07_cost_model", variant=variant, workload="all_reduce", ranks=2, bytes=size, predicted=predicted,
                         measured=predicted * (1 + 0.07 * (-1) ** i + 0.01 * repeat), unit="s", repeat=repeat) for repeat in (1, 2, 3)]
    return made


def bubbles():
    made = []
    for schedule, v in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2)):
        for p, kind in ((2, "measured"), (4, "synthetic")):
            for m in (1, 2, 4, 8, 16):
                theory = (p - 1) / (v * m + p - 1)
                made += [row(chapter="06_pipeline", lesson="bench_bubble", variant=schedule, workload=f"p={p} m={m} v={v}", kind=kind, ranks=p, batch=4,
                             global_batch=4 * m, oversubscribed="false", predicted=theory, measured=theory + 0.01 + 0.004 * repeat, unit="bubble",
                             repeat=repeat) for repeat in (1, 2, 3)]
    return made


def ladder():
    rungs = (("baseline", 21, None), ("workers", 34, 1.6), ("channels_last", 47, 1.4), ("fused optimiser", 48, 1.02), ("bf16", 40, 0.8), ("batch 64", 56, 1.15), ("all kept", 55, 2.6))
    common = dict(chapter="01_single_gpu", lesson="07_ladder", workload="resnet18", rate_unit="samples/s")
    made = [entry for name, rate, _ in rungs for entry in repeats(variant=name, batch=32, median_s=32 / rate, rate=rate, **common)]
    return made + [row(variant=name, measured=gain * (0.94 + 0.03 * repeat), unit="gain", repeat=repeat, run_id=f"r{repeat}", **common) for name, _, gain in rungs if gain for repeat in (1, 2, 3)]


def precision():
    made = []
    for dtype, offset in (("float32", 0.0), ("float16", 0.05), ("bfloat16", 0.02)):
        for step in range(0, 201, 20):
            for repeat in (1, 2, 3):
                made.append(row(chapter="05_mixed_precision", lesson="bench_precision", variant="amp", workload="convnet digits", dtype=dtype, iterations=step,
                                loss=2.3 * 0.985**step + offset + 0.01 * repeat, repeat=repeat))
    return made


def strategies(ranks=4):
    made = []
    for strategy, time, memory, sent in (("ddp", 0.21, 16.0, 6.0), ("zero1", 0.215, 10.0, 6.0), ("zero2", 0.22, 7.0, 6.0), ("zero3", 0.26, 4.4, 9.0),
                                         ("tp4", 0.30, 4.2, 12.0), ("tp4+sp", 0.30, 3.9, 12.0), ("pp4", 0.28, 4.5, 1.0), ("tp2+dp2", 0.25, 8.1, 8.0)):
        made += repeats(lesson="strategy_matrix", variant=strategy, workload="gpt", ranks=ranks, oversubscribed="true", global_batch=32, median_s=time,
                        peak_bytes=int(memory * 2**20), sent_bytes=int(sent * 2**20), loss=4.2181 + (2e-6 if "tp" in strategy else 0))
    return made


def memory():
    """Bytes per rank of a model with a million parameters, by the formulas for fp32 Adam, and a little above."""
    made = []
    for n in (2, 4):
        for variant, each in (("overlapped", 16), ("zero1", 8 + 8 / n), ("zero2", 4 + 12 / n), ("zero3", 16 / n)):
            made += [row(lesson="bench_memory", variant=variant, workload="gpt", ranks=n, oversubscribed=str(n > 2).lower(), peak_bytes=int(each * 1e6 * 1.03),
                         predicted=each * 1e6, measured=each * 1e6 * 1.03, unit="bytes", repeat=repeat) for repeat in (1, 2, 3)]
    return made


def everything(folder):
    """A folder with one file for each family of plots."""
    folder = pathlib.Path(folder)
    write(folder / "ch01_07_ladder.csv", ladder())
    write(folder / "ch02_bench_collectives.csv", bandwidth() + bandwidth(4, oversubscribed="true"))
    write(folder / "ch02_cost_model.csv", predictions())
    write(folder / "ch03_bench_scaling.csv", scaling() + scaling("weak") + scaling(workload="vgg11", serial=0.25))
    write(folder / "ch03_strategies.csv", strategies() + memory())
    write(folder / "ch05_precision.csv", precision())
    write(folder / "ch06_bench_bubble.csv", bubbles())
    return folder


def everything_small(program, ranks):
    """What one run of a program writes, for stub programs."""
    if program == "07_ladder":
        return ladder()[::3]
    if program == "bench_collectives":
        return bandwidth(ranks)[::3]
    if program == "bench_bubble":
        return [entry for entry in bubbles()[::3] if entry["ranks"] == ranks]
    return scaling(ranks=(ranks,))[::3]


def trace(path, stages=3, microbatches=4):
    """A GPipe timeline as the programs' --trace writes it."""
    events = []
    for stage in range(stages):
        events.append({"ph": "M", "pid": stage, "tid": 0, "name": "process_name", "args": {"name": f"rank {stage} (test-data)"}})
        events.append({"ph": "M", "pid": stage, "tid": 0, "name": "thread_name", "args": {"name": "compute"}})
        for m in range(microbatches):
            events.append({"ph": "X", "pid": stage, "tid": 0, "name": f"forward {m}", "ts": 1000.0 * (stage + m), "dur": 950.0})
            events.append({"ph": "X", "pid": stage, "tid": 0, "name": f"backward {m}", "ts": 1000.0 * (stages + microbatches - 1 + 2 * (stages - 1 - stage + m)), "dur": 1900.0})
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return path


def monitor(path):
    lines = ["time_s,cpu_percent,process_percent,process_bytes,gpu_percent,gpu_bytes,gpu_watts"]
    lines += [f"{0.5 * i},{60 + 30 * (i % 5) / 5 if i else ''},{110 + 40 * (i % 3) / 3 if i else ''},{1e8 + i},,," for i in range(40)]
    path.write_text("\n".join(lines) + "\n")
    return path
