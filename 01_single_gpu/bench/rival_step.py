#!/usr/bin/env python3
"""One training step on one thread: PyTorch in Python beside ours, by turns, on the same weights and the same batches.

    python3 01_single_gpu/bench/rival_step.py --model mlp
    python3 01_single_gpu/bench/rival_step.py --model resnet18

bench_step writes its initial weights and all batches to a safetensors file; PyTorch reads them. First both train from there and
must agree: every loss within 1e-4 (relative). Then they take turns, with PyTorch's optimiser once as it comes and once fused=True.
Exit 1 if the losses disagree, 77 where PyTorch is not installed.
"""
import argparse
import json
import statistics
import sys
import tempfile
import time

import rivals


def make(kind, torch):
    """The Python twin of common/models, under the same names."""
    from torch import nn

    if kind == "mlp":
        class Mlp(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc1, self.fc2, self.fc3 = nn.Linear(784, 128), nn.Linear(128, 128), nn.Linear(128, 10)

            def forward(self, x):
                return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1))))))

        return Mlp()
    try:
        from torchvision.models import resnet18
    except ImportError as error:
        rivals.skip(str(error))
    model = resnet18(num_classes=10)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()  # the stem for 32x32 images
    return model


class Rival:
    def __init__(self, kind, tensors, metadata, torch, fused):
        self.torch, self.model = torch, make(kind, torch)
        state = {name.removeprefix("model."): tensor.clone() for name, tensor in tensors.items() if name.startswith("model.")}
        self.model.load_state_dict(state, strict=True)
        self.x, self.y = tensors["x"], tensors["y"]
        settings = {"fused": True} if fused else {}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=float(metadata["learning_rate"]), momentum=float(metadata["momentum"]), **settings)
        self.number = 0

    def run(self, steps):
        losses, seconds = [], []
        for _ in range(steps):
            start = time.perf_counter()
            x, y = self.x[self.number % len(self.x)], self.y[self.number % len(self.x)]
            self.number += 1
            self.optimizer.zero_grad()
            loss = self.torch.nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - start)
        return losses, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp", choices=["mlp", "resnet18"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=0, help="per turn; 0: 100 for mlp, 3 for resnet18")
    parser.add_argument("--curve", type=int, default=50, help="steps over which the losses must agree")
    parser.add_argument("--rate", type=float, default=0, help="learning rate; 0: 0.01 for mlp, 0.001 for resnet18, where a higher one makes training chaotic")
    parser.add_argument("--program", default=rivals.ROOT / "build/01_single_gpu/bench_step")
    parser.add_argument("arguments", nargs="*", help="further flags for bench_step, behind --")
    arguments = parser.parse_args()
    try:
        import torch
        from safetensors import safe_open
    except ImportError as error:
        rivals.skip(str(error))
    torch.set_num_threads(1)
    steps = arguments.steps or (100 if arguments.model == "mlp" else 3)

    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/exchange.safetensors"
        ours = rivals.Ours(arguments.program, "--model", arguments.model, "--exchange", file, "--rate", arguments.rate or (0.01 if arguments.model == "mlp" else 0.001), *arguments.arguments)
        with safe_open(file, framework="pt") as reader:
            tensors, metadata = {name: reader.get_tensor(name) for name in reader.keys()}, reader.metadata()
    plain, fused = (Rival(arguments.model, tensors, metadata, torch, choice) for choice in (False, True))

    # Verify: the same curve from the same start.
    our_losses = json.loads(ours.ask(arguments.curve, "{"))["losses"]
    losses, _ = plain.run(arguments.curve)
    differences = [abs(a - b) / abs(b) for a, b in zip(our_losses, losses)]
    worst = max(differences)
    if not worst <= 1e-4:
        step = differences.index(worst)
        sys.exit(f"losses differ from PyTorch's by {worst:.1e} at step {step}: {our_losses[step]} and {losses[step]}")
    print(f"{arguments.model}: {arguments.curve} losses from the same weights agree with PyTorch {torch.__version__} within {worst:.1e}; last {our_losses[-1]:.6f}")

    # Time.
    turns = rivals.by_turns({
        "ours": lambda: statistics.median(json.loads(ours.ask(steps, "{"))["seconds"]),
        "default": lambda: statistics.median(plain.run(steps)[1]),
        "fused": lambda: statistics.median(fused.run(steps)[1]),
    }, arguments.rounds)
    ours.close()
    print(f"one thread, batch {tensors['x'].shape[1]}, {arguments.rounds} rounds of {steps} steps each, by turns, medians:")
    print(f"  ours                       {1e3 * statistics.median(turns['ours']):9.3f} ms")
    for name in ("default", "fused"):
        middle, low, high = rivals.ratio(turns[name], turns["ours"])
        print(f"  PyTorch, {name:8} optimiser {1e3 * statistics.median(turns[name]):9.3f} ms   ours is {middle:.2f}x as fast (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
