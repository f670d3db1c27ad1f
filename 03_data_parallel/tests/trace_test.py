#!/usr/bin/env python3
"""Runs 03_overlapped with --trace and reads the timeline: on every rank, in every step that communicates, the first all-reduce starts
before that step's backward ends.

    trace_test.py COMMAND...
"""
import json
import pathlib
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "trace.json"
    subprocess.run([*sys.argv[1:], "--trace", str(path)], check=True, stdout=subprocess.DEVNULL)
    events = json.loads(path.read_text())
events = events["traceEvents"] if isinstance(events, dict) else events
lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "thread_name"}
spans = sorted((e["pid"], e["ts"], e["ts"] + e["dur"], lanes[e["pid"], e["tid"]], e["name"]) for e in events if e.get("ph") == "X")
checked = 0
for rank in sorted({span[0] for span in spans}):
    mine = [span[1:] for span in spans if span[0] == rank]
    backwards = [(start, end) for start, end, lane, name in mine if name == "backward"]
    reduces = [start for start, _, lane, _ in mine if lane == "all-reduce"]
    for (start, end), (following, _) in zip(backwards, backwards[1:] + [(float("inf"), 0)]):
        of_step = [at for at in reduces if start <= at < following]
        if not of_step:
            continue  # a step that was timed without communication
        if min(of_step) >= end:
            sys.exit(f"rank {rank}: the first all-reduce starts {min(of_step) - end:.0f} us after backward ended")
        checked += 1
if checked == 0:
    sys.exit("no step with an all-reduce in the trace: nothing was checked")
print(f"{checked} steps: the first all-reduce starts before backward ends")
