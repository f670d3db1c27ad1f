"""Figures that others published. They stand in a table of their own: other hardware, other software, not measured here."""

HEADER = ("who", "setting", "figure", "source")
TABLE = (
    ("Horovod", "512 GPUs (Pascal), 25 Gbit/s RoCE; ResNet-101 and Inception V3", "90% scaling efficiency", "Horovod documentation, Benchmarks; Sergeev and Del Balso, arXiv:1802.05799"),
    ("Horovod", "512 GPUs (Pascal), 25 Gbit/s RoCE; VGG-16", "68% scaling efficiency", "Horovod documentation, Benchmarks"),
    ("PyTorch DDP", "16 V100, ResNet-50", "93% scaling efficiency", "PyTorch project †"),
    ("mnmg", "1 node against 2, one GPU each", "57m32s to 31m18s: 1.84x", "mnmg course repository †"),
    ("torchtitan", "Llama 3.1 8B, FSDP, 8 to 128 H100", "5,762 to 5,605 tokens/s per GPU: 97.3%", "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md; arXiv:2410.06511"),
    ("torchtitan", "Llama 3.1 405B, 512 H100, interleaved 1F1B over 1F1B", "128 against 100 tokens/s per GPU: +28%", "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"),
    ("NCCL", "8 H200, NVLink, ring all-reduce", "367 GB/s bus bandwidth: 82% of the link", "nccl-tests, run by a user †; NCCL's developers say about 370 of 450 GB/s: nccl-tests issue 212"),
    ("NERSC", "one A100: baseline, workers, DALI, bf16, fused optimiser, compiled", "8.8, 12.6, 13.2, 53.2, 53.3, 55.0 samples/s", "SC24 Deep Learning at Scale tutorial, README (NERSC/sc24-dl-tutorial)"),
    ("Calculon", "predicted against Megatron's measured step times", "3.65% mean error", "Isaev et al., SC23 †"),
)
