"""torch.distributed over Gloo, as bench_collectives drives it: one process beside each rank, a line in, a line out.

    gloo_peer.py STORE RANK RANKS

Prints "ready", or why not, and ends; then, until its input closes,
  run COUNT ITERATIONS    answers the seconds of that many all-reduces of COUNT floats
  check COUNT             answers how many elements of one all-reduce of the benchmark's pattern are wrong
While it waits for a line it sleeps in the kernel and takes no core from the other contenders.
"""
import sys
import time

try:
    import torch
    import torch.distributed as dist
except (ImportError, OSError) as error:
    sys.exit(print(f"no PyTorch in Python ({error}); ./scripts/setup.sh --rivals"))


def pattern(count, rank):
    return torch.remainder(torch.arange(count, dtype=torch.int32), 251).add_(rank).to(torch.float32)


def main():
    torch.set_num_threads(1)
    store, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    data = torch.zeros(0)
    print("ready", torch.__version__, flush=True)
    for line in sys.stdin:
        order, count, *rest = line.split()
        count = int(count)
        if order == "check":
            got = pattern(count, rank)
            dist.all_reduce(got)
            print(int((got != sum(pattern(count, r) for r in range(ranks))).sum()), flush=True)
            continue
        if data.numel() != count:
            data = torch.zeros(count)
        start = time.perf_counter()
        for _ in range(int(rest[0])):
            dist.all_reduce(data)
        print(time.perf_counter() - start, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
