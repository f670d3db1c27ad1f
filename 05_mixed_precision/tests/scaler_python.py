"""Our scaler against PyTorch's GradScaler: 300 steps, overflows of their own and injected ones. Scales and skips bit by bit; parameters
within what rounding explains: PyTorch's SGD takes fused multiply-adds where the CPU (or ATEN_CPU_CAPABILITY) has them, ours always does.
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


RATE, MOMENTUM, DECAY = 0.05, 0.9, 1e-3
U = 2.0**-24  # half a unit in the last place of a float, relative


def bits(tensor):
    return [f"{value & 0xffffffff:08x}" for value in tensor.detach().reshape(-1).view(torch.int32).tolist()]


def floats(words):
    return torch.tensor([int(word, 16) for word in words], dtype=torch.int64).to(torch.int32).view(torch.float32)


def bound(before, velocity_before, after, velocity):
    """How far one step of SGD may be from another that rounds at other places. Each operation rounds by U times its result: a fused
    multiply-add once, a product and a sum twice. total = decay * p + g; v = momentum * v + total; p = p - rate * v. First order in U;
    one hundredth more covers the rest."""
    before, velocity_before, after, velocity = (t.double().abs() for t in (before, velocity_before, after, velocity))
    total = velocity + MOMENTUM * velocity_before  # at least |total|
    of_total = U * (DECAY * before + 2 * total)
    of_velocity = of_total + 2 * U * (MOMENTUM * velocity_before + velocity)
    return 1.01 * (RATE * of_velocity + U * (RATE * velocity + 2 * after))


def follow(ours, initial, growth, backoff, interval, injected):
    """Each step from our state before it: PyTorch's scale and skip, and how far its parameters are from ours, as a share of the bound."""
    index = torch.arange(COUNT)
    target = 0.3 * (index % 7).float() - 1.0
    steepness = torch.ldexp(1.0 + 0.01 * index.float(), -(index % 20))
    parameter = torch.nn.Parameter(1.0 + 0.125 * (index % 5).float())
    optimizer = torch.optim.SGD([parameter], lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=initial, growth_factor=growth, backoff_factor=backoff, growth_interval=interval)
    scaler.scale(torch.zeros(1))  # makes its tensors
    before, velocity = parameter.detach().clone(), torch.zeros(COUNT)
    lines, other_bits, share = [], 0, 0.0
    for step, line in enumerate(ours):
        with torch.no_grad():
            parameter.copy_(before)
        optimizer.state[parameter]["momentum_buffer"] = velocity.clone()
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
        lines.append([str(step), *bits(scale), str(int(skipped))])
        after, next_velocity = floats(line[3:3 + COUNT]), floats(line[3 + COUNT:])
        difference = (parameter.detach().double() - after.double()).abs()
        other_bits += int((difference > 0).sum())
        if skipped:
            assert not difference.any() and torch.equal(next_velocity, velocity), f"step {step}: a skipped step changed something"
        share = max(share, float((difference / bound(before, velocity, after, next_velocity)).max()))
        assert share <= 1, f"step {step}: a parameter differs by {float(difference.max())}, {share:.1f} times what rounding explains"
        before, velocity = after, next_velocity
    return lines, other_bits, share


def compare(peer, name, initial, growth, backoff, interval, injected):
    words = [f"{at}:{element}:{value}" for at, element, value in injected]
    output = subprocess.run([peer, str(STEPS), repr(initial), repr(growth), repr(backoff), str(interval), *words], check=True, capture_output=True, text=True).stdout
    ours = [line.split() for line in output.splitlines()]
    assert len(ours) == STEPS and all(len(line) == 3 + 2 * COUNT for line in ours), len(ours)
    theirs, other_bits, share = follow(ours, initial, growth, backoff, interval, injected)
    for mine, other in zip(ours, theirs):
        assert mine[:3] == other, f"{name}: step {other[0]}: scale and skip {mine[1:3]}, PyTorch {other[1:3]}"
    skips = sum(int(line[2]) for line in theirs)
    scales = len({line[1] for line in theirs})
    print(f"{name}: {STEPS} steps, {skips} skipped, {scales} scales: the same bits as torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}); "
          f"{other_bits} of {STEPS * COUNT} parameters with other bits, by {share:.2f} of the bound at most")
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
