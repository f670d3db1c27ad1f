#!/usr/bin/env python3
"""One rank of PyTorch DistributedDataParallel over Gloo (TCP), the rival of bench_scaling, which starts it.

Reads a number of steps from standard input, makes them, answers "done"; ends with its input. The model is that of
common/models layer by layer, with the same batch and one thread. Set up as its documentation advises for speed: gradients as
views of buckets, fused optimiser, not bound to a core (as torchrun starts it).
"""
import argparse
import os
import sys


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
    if kind == "vgg11":
        layers, channels = [], 3
        for planes, pool in ((64, 1), (128, 1), (256, 0), (256, 1), (512, 0), (512, 1), (512, 0), (512, 1)):
            layers += [nn.Conv2d(channels, planes, 3, 1, 1), nn.ReLU(inplace=True)] + ([nn.MaxPool2d(2, 2)] if pool else [])
            channels = planes
        classifier = [nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 10)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *classifier), (3, 32, 32)
    if kind == "gpt":
        return nn.Sequential(Embedding(256, 128, 128), *[GptBlock(128, 4) for _ in range(4)], nn.LayerNorm(128), nn.Linear(128, 256, bias=False)), None
    sys.exit(f"no Python twin of {kind}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp", choices=["mlp", "resnet18", "vgg11", "gpt"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--optimizer", default="adam", choices=["adam", "sgd"])
    arguments = parser.parse_args()
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:  # the CPU-only install has no Python side
        print(f"missing import torch: {error}", flush=True)
        return
    os.sched_setaffinity(0, range(os.cpu_count()))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, shape = make(arguments.model)
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if arguments.optimizer == "adam":
        optimizer = torch.optim.Adam(ddp.parameters(), fused=True)
    else:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9, fused=True)
    n = arguments.batch
    x, y = (torch.randn(n, *shape), torch.randint(10, (n,))) if shape else (torch.randint(256, (n, 128)), torch.randint(256, (n, 128)))

    def run(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            output = ddp(x)
            torch.nn.functional.cross_entropy(output.reshape(-1, output.shape[-1]), y.reshape(-1)).backward()
            optimizer.step()

    run(3)  # buckets are rebuilt after the first
    print(f"ready {torch.__version__} {sum(p.numel() for p in model.parameters())}", flush=True)
    for line in sys.stdin:
        run(int(line))
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
