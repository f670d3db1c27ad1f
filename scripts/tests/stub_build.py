"""Build folders with stub programs in them, for tests of what runs programs."""
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
QUICK = ("01_single_gpu/07_ladder", "02_message_passing/bench_collectives", "03_data_parallel/bench_scaling", "04_model_parallel/bench_modes",
         "06_pipeline/bench_bubble")


def make(folder, programs=QUICK):
    """Puts the stub at the place of each program."""
    for name in programs:
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{sys.executable}\n" + (HERE / "stub_program.py").read_text())
        path.chmod(0o755)
    return pathlib.Path(folder)


def environment(**more):
    return dict(os.environ, MANYRANKS_STUB_PATH=str(HERE), **more)
