#!/usr/bin/env python3
"""PyTorch DistributedDataParallel over Gloo beside ours, by turns: what people use today, transport named.

    python3 03_data_parallel/bench/rival_ddp.py --model mlp --ranks 2 --rounds 9

Each round starts our bench_scaling (strategy ddp) and then PyTorch DDP on the same model, batch, optimiser and number of
threads, and takes the ratio of their steps; the figure is the median over rounds. Exit 77 where `import torch` fails.
"""
import argparse
import csv
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def make(kind):
    """The models of common/models, layer by layer."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, channels, planes, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(channels, planes, 3, stride, 1, bias=False)
            self.bn1, self.bn2 = nn.BatchNorm2d(planes), nn.BatchNorm2d(planes)
            self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
            self.down = None
            if channels != planes or stride != 1:
                self.down = nn.Sequential(nn.Conv2d(channels, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

        def forward(self, x):
            y = self.bn1(self.conv1(x)).relu_()
            y = self.bn2(self.conv2(y))
            y += self.down(x) if self.down else x
            return y.relu_()

    class Attention(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

        def forward(self, x):
            n, t, c = x.shape
            q, k, v = (part.view(n, t, self.heads, c // self.heads).transpose(1, 2) for part in self.qkv(x).split(c, 2))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(n, t, c))

    class GptBlock(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.ln1, self.ln2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), Attention(width, heads)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.attention(self.ln1(x))
            return x + self.mlp(self.ln2(x))

    class Embedding(nn.Module):
        def __init__(self, vocab, context, width):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)

        def forward(self, x):
            return self.tokens(x) + self.places(torch.arange(x.shape[1]))

    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)), (1, 28, 28)
    if kind == "resnet18":
        layers, channels = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)], 64
        for index in range(4):
            for block in range(2):
                layers.append(Block(channels, 64 << index, 2 if index and not block else 1))
                channels = 64 << index
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)), (3, 32, 32)
    if kind == "gpt":
        return nn.Sequential(Embedding(256, 128, 128), *[GptBlock(128, 4) for _ in range(4)], nn.LayerNorm(128), nn.Linear(128, 256, bias=False)), None
    sys.exit(f"no Python twin of {kind}")


def rank_main(arguments):
    """One rank of PyTorch DDP: prints seconds per step, the slowest rank's."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, shape = make(arguments.model)
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(ddp.parameters(), fused=True)
    n = arguments.batch
    x, y = (torch.randn(n, *shape), torch.randint(10, (n,))) if shape else (torch.randint(256, (n, 128)), torch.randint(256, (n, 128)))

    def step():
        optimizer.zero_grad()
        output = ddp(x)
        torch.nn.functional.cross_entropy(output.reshape(-1, output.shape[-1]), y.reshape(-1)).backward()
        optimizer.step()

    for _ in range(3):
        step()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(arguments.steps):
        step()
    seconds = torch.tensor([(time.perf_counter() - start) / arguments.steps])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"parameters {sum(p.numel() for p in model.parameters())} seconds {seconds.item()}")
    dist.destroy_process_group()


def theirs(arguments, port):
    command = [sys.executable, __file__, "--as-rank", "--model", arguments.model, "--batch", str(arguments.batch), "--steps", str(arguments.steps)]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(arguments.ranks), OMP_NUM_THREADS="1")
    ranks = [subprocess.Popen(command, env=dict(environment, RANK=str(rank)), stdout=subprocess.PIPE, text=True) for rank in range(arguments.ranks)]
    outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("PyTorch DDP failed")
    words = outputs[0].split()
    return int(words[1]), float(words[3])


def ours(arguments):
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        os.unlink(file.name)
        command = ["mpirun", "-np", str(arguments.ranks), str(arguments.binary), "--models", arguments.model, "--strategies", "ddp", "--rounds", "1",
                   "--steps", str(arguments.steps), "--batch", str(arguments.batch), "--csv", file.name]
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        with open(file.name) as table:
            row = list(csv.DictReader(table))[-1]
        pathlib.Path(file.name).touch()
        return float(row["median_s"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp", choices=["mlp", "resnet18", "gpt"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/03_data_parallel/bench_scaling")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        import torch
    except Exception as error:  # the CPU-only install has no Python side
        print(f"skipped (rivals): import torch: {error}; scripts/setup.sh --rivals", file=sys.stderr)
        sys.exit(77)
    if arguments.as_rank:
        return rank_main(arguments)
    ratios = []
    for round_ in range(arguments.rounds):
        mine = ours(arguments)
        parameters, rival = theirs(arguments, 29600 + round_)
        ratios.append(rival / mine)
        print(f"round {round_}: ours {mine * 1e3:.2f} ms, PyTorch {torch.__version__} DDP over Gloo (TCP) {rival * 1e3:.2f} ms: {ratios[-1]:.2f}x", flush=True)
    print(f"{arguments.model}, {parameters} parameters, batch {arguments.batch} x {arguments.ranks} ranks: {statistics.median(ratios):.2f}x PyTorch DDP (median of {len(ratios)} pairs)")


if __name__ == "__main__":
    main()
