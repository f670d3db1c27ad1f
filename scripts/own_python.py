"""The scripts need what ./scripts/setup.sh put into .venv. Whoever starts one with another Python is taken there, or told what to do."""
import importlib.util
import os
import pathlib
import sys

VENV = pathlib.Path(__file__).resolve().parent.parent / ".venv"


def need(*modules):
    """Before the imports of those modules. Does not return where they are missing here and .venv has them: the script starts again there."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return
    python = VENV / "bin" / "python"
    if python.exists() and pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(python, [str(python), *sys.argv])
    print(f"{pathlib.Path(sys.argv[0]).name}: needs {', '.join(missing)}; try: ./scripts/setup.sh", file=sys.stderr)
    sys.exit(69)
