"""Our scaler against PyTorch's GradScaler: 300 steps, overflows of their own and injected ones. Scales, skips and parameters, bit by bit.
Usage: scaler_python.py PATH_OF_scaler_peer"""
import os
import subprocess
import sys

try:
    import torch
    torch.amp.GradScaler("cpu")
except (ImportError, AttributeError) as missing:
    print(f"skipped (need: pytorch): {missing}")
    sys.exit(1 if "pytorch" in os.environ.get("MANYRANKS_REQUIRE", "").split(",") else 77)

STEPS, COUNT = 300, 37


def bits(tensor):
    return [f"{value & 0xffffffff:08x}" for value in tensor.detach().reshape(-1).view(torch.int32).tolist()]


def by_pytorch(initial, growth, backoff, interval, injected):
    index = torch.arange(COUNT)
    parameter = torch.nn.Parameter(1.0 + 0.125 * (index % 5).float())
    target = 0.3 * (index % 7).float() - 1.0
    steepness = torch.ldexp(1.0 + 0.01 * index.float(), -(index % 20))
    optimizer = torch.optim.SGD([parameter], lr=0.05, momentum=0.9, weight_decay=1e-3, foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=initial, growth_factor=growth, backoff_factor=backoff, growth_interval=interval)
    scaler.scale(torch.zeros(1))  # makes its tensors
    lines = []
    for step in range(STEPS):
        before = parameter.detach().clone()
        scale = scaler._scale.clone()
        gradient = ((before - target) * steepness * scale).half().float()
        for at, element, value in injected:
            if at == step:
                gradient[element] = float(value)
        parameter.grad = gradient
        finite = bool(torch.isfinite(gradient).all())
        scaler.step(optimizer)
        scaler.update()
        skipped = torch.equal(parameter.detach(), before)
        assert skipped != finite, (step, "GradScaler did not do what its documentation says")
        lines.append([str(step), *bits(scale), str(int(skipped)), *bits(parameter)])
    return lines


def compare(peer, name, initial, growth, backoff, interval, injected):
    words = [f"{at}:{element}:{value}" for at, element, value in injected]
    output = subprocess.run([peer, str(STEPS), repr(initial), repr(growth), repr(backoff), str(interval), *words], check=True, capture_output=True, text=True).stdout
    ours, theirs = [line.split() for line in output.splitlines()], by_pytorch(initial, growth, backoff, interval, injected)
    assert len(ours) == len(theirs) == STEPS, len(ours)
    for mine, other in zip(ours, theirs):
        assert mine[:3] == other[:3], f"{name}: step {other[0]}: scale and skip {mine[1:3]}, PyTorch {other[1:3]}"
        assert mine == other, f"{name}: step {other[0]}: a parameter differs"
    skips = sum(int(line[2]) for line in theirs)
    scales = len({line[1] for line in theirs})
    print(f"{name}: {STEPS} steps, {skips} skipped, {scales} scales: the same bits as torch {torch.__version__}")
    return skips, scales


def main():
    peer = sys.argv[1]
    some = [(0, 3, "inf"), (1, 0, "nan"), (2, 36, "-inf"), (50, 5, "inf"), (51, 6, "nan"), (150, 1, "inf"), (299, 2, "nan")]
    skips, _ = compare(peer, "defaults", 65536.0, 2.0, 0.5, 2000, some)
    assert skips >= len(some)
    skips, scales = compare(peer, "short interval", 65536.0, 2.0, 0.5, 10, some)
    assert skips > len(some) and scales > 5, "nothing overflowed by itself"
    _, scales = compare(peer, "odd factors", 1000.0, 1.7, 0.3, 7, some)
    assert scales > 10
    compare(peer, "grows to the end of float", 2.0**100, 2.0**10, 0.5, 1, [(at, 0, "inf") for at in (40, 41)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
