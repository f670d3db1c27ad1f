"""Event files of ours read back by the real tensorboard package. Usage: tensorboard_python.py PATH_OF_tensorboard_peer"""
import math
import os
import struct
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as missing:
    print(f"skipped (need: tensorboard): {missing}")
    sys.exit(1 if "tensorboard" in os.environ.get("MANYRANKS_REQUIRE", "").split(",") else 77)


def as_float(value):
    return struct.unpack("f", struct.pack("f", value))[0]


with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.argv[1], folder], check=True)
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["rate é", "train/loss"], events.Tags()
    loss = events.Scalars("train/loss")
    assert [e.step for e in loss] == [*range(250), 5_000_000_000]
    assert all(e.value == as_float(2.0 / (1 + e.step)) and e.wall_time == 1.7e9 + e.step for e in loss[:-1])
    assert math.isnan(loss[-1].value) and loss[-1].wall_time == 1.8e9
    assert [(e.step, e.value) for e in events.Scalars("rate é")] == [(s, as_float(0.1 * s)) for s in range(0, 250, 50)]
print("tensorboard: 256 scalars read back")
