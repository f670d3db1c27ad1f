"""The parts of prepare_imagenet.py that are ideas of their own: the devkit's class numbers, and shard files."""
