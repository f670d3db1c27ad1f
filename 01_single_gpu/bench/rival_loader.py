#!/usr/bin/env python3
"""JPEG files to normalised batches: torchvision's ImageFolder and PyTorch's DataLoader beside ours, by turns.

    python3 01_single_gpu/bench/rival_loader.py --workers 2

Both read the same 500x375 files (drawn, as many bytes as photographs), bring the shorter side to 224, take the centre, normalise and
batch, with as many workers. First every sample's pixels are compared: within 2 levels of 255. Decoding at reduced scale is a row of
its own: it is not the same work. Exit 1 if pixels disagree, 77 where torchvision is not installed.
"""
import argparse
import statistics
import subprocess
import sys
import tempfile
import time

import rivals


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=384)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--build", default=rivals.ROOT / "build")
    arguments = parser.parse_args()
    try:
        import numpy as np
        import torch
        from torchvision import __version__, datasets, transforms
    except ImportError as error:
        rivals.skip(str(error))
    torch.set_num_threads(1)
    program, size = f"{arguments.build}/01_single_gpu/bench_loader", arguments.size

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "make", folder, str(arguments.images)], check=True)

        # Verify: the same samples in the same order, the same pixels.
        crop = [transforms.Resize(size), transforms.CenterCrop(size)]
        raw = f"{folder}/raw"
        subprocess.run([f"{arguments.build}/common/data/data_probe", folder, "train", str(size), "crop", raw], check=True, stdout=subprocess.DEVNULL)
        ours = np.memmap(raw, np.uint8, "r", shape=(arguments.images, size, size, 3))
        worst = 0
        for pixels, (image, _) in zip(ours, datasets.ImageFolder(f"{folder}/train", transforms.Compose(crop))):
            worst = max(worst, int(np.abs(pixels.astype(int) - np.asarray(image).astype(int)).max()))
        if worst > 2:
            sys.exit(f"pixels differ from torchvision's by up to {worst} levels")
        print(f"{arguments.images} JPEG files of 500x375: resized pixels within {worst} level(s) of torchvision {__version__}'s")

        # Time: whole epochs. Workers of the DataLoader persist between them, as ours do.
        normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        theirs = torch.utils.data.DataLoader(datasets.ImageFolder(f"{folder}/train", transforms.Compose([*crop, transforms.ToTensor(), normalise])),
                                             batch_size=arguments.batch, num_workers=arguments.workers, persistent_workers=arguments.workers > 0)
        full, reduced = (rivals.Ours(program, "load", folder, size, arguments.workers, arguments.batch, scale) for scale in ("full", "reduced"))

        def epoch():
            start = time.perf_counter()
            if sum(len(labels) for _, labels in theirs) != arguments.images:
                sys.exit("torchvision lost samples")
            return time.perf_counter() - start

        contenders = {"torchvision": epoch, "ours": lambda: float(full.ask("go")), "ours, reduced scale": lambda: float(reduced.ask("go"))}
        rivals.by_turns(contenders, 1)  # warm-up: starts the DataLoader's workers, and brings the files into memory
        turns = rivals.by_turns(contenders, arguments.rounds)
        full.close(), reduced.close()
    print(f"{arguments.workers} worker(s), batch {arguments.batch}, {arguments.rounds} epochs each, by turns, medians:")
    for name, seconds in turns.items():
        middle, low, high = rivals.ratio(turns["torchvision"], seconds)
        print(f"  {name:20} {arguments.images / statistics.median(seconds):7.0f} samples/s   {middle:.2f}x (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
