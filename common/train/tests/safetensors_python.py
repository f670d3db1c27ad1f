"""Files of ours read by Python's safetensors, and the reverse. Usage: safetensors_python.py PATH_OF_safetensors_peer"""
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import save_file
except ImportError as missing:
    print(f"skipped (need: safetensors): {missing}")
    sys.exit(1 if "safetensors" in os.environ.get("MANYRANKS_REQUIRE", "").split(",") else 77)

NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
         "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL"}


def fnv1a(data):
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 % 2**64
    return f"{value:016x}"


def ours_to_python(peer, folder):
    path = os.path.join(folder, "ours.safetensors")
    subprocess.run([peer, "write", path], check=True)
    expected = {
        "bytes": np.array([0, 1, 255], np.uint8), "flags": np.array([True, False]),
        "layer.weight": (np.arange(6, dtype=np.float32) - 2.5).reshape(2, 3), "doubles": np.array([3.141592653589793, -1e300]),
        "longs": np.array([[-2**63], [0], [2**63 - 1]]), "halves": np.array([1, -2], np.float16), "scalar": np.array(42),
        "empty": np.zeros((0, 4), np.float32)}
    with safe_open(path, framework="np") as file:
        assert set(file.keys()) == set(expected), file.keys()
        assert file.metadata() == {"step": "12", "note": 'quote " and é'}, file.metadata()
        for name, value in expected.items():
            got = file.get_tensor(name)
            assert got.dtype == value.dtype and got.shape == value.shape and np.array_equal(got, value), (name, got, value)


def python_to_ours(peer, folder):
    path = os.path.join(folder, "theirs.safetensors")
    random = np.random.default_rng(1)
    tensors = {f"layer.{i}.{dtype}": random.integers(0, 2, (i + 1, 3, 2)).astype(dtype) for i, dtype in enumerate(NAMES)}
    tensors["scalar"] = np.array(1.5, np.float32)
    tensors["empty"] = np.zeros((3, 0), np.int64)
    save_file(tensors, path, metadata={"framework": "numpy"})
    listing = subprocess.run([peer, "list", path], check=True, capture_output=True, text=True).stdout.splitlines()
    expected = {f"{name} {NAMES[str(t.dtype)]} [{','.join(map(str, t.shape))}] {fnv1a(t.tobytes())}" for name, t in tensors.items()}
    assert set(listing) == expected | {"framework=numpy"}, set(listing) ^ expected
    return path


def both_refuse_a_cut_file(peer, path):
    data = open(path, "rb").read()
    with open(path, "wb") as file:
        file.write(data[:-1])
    result = subprocess.run([peer, "list", path], capture_output=True, text=True)
    assert result.returncode == 65 and path in result.stderr, result
    try:
        safe_open(path, framework="np").__enter__()
    except Exception:
        return
    raise AssertionError("Python read a cut file")


peer_program = sys.argv[1]
with tempfile.TemporaryDirectory() as scratch:
    ours_to_python(peer_program, scratch)
    both_refuse_a_cut_file(peer_program, python_to_ours(peer_program, scratch))
print("safetensors: both ways equal")
