"""Our decoder and resize against Pillow's: decoded pixels within 1 level, resized ones within 2. Exit 77 without Pillow."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy as np
    from PIL import Image
except ImportError as error:
    print(f"skipped (rivals): {error}; ./scripts/setup.sh --rivals installs it")
    sys.exit(1 if "rivals" in os.environ.get("MANYRANKS_REQUIRE", "").split(",") else 77)

PROBE = os.environ["MANYRANKS_DATA_PROBE"]


def picture(width, height, seed):
    """Smooth colours, hard edges and grain: all that a photo has."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([128 + 100 * np.sin(x / (5 + 9 * c) + y / (23 - 4 * c)) for c in range(3)], -1)
    for _ in range(6):
        left, top = random.integers(0, width), random.integers(0, height)
        image[top:top + height // 4, left:left + width // 3] = random.integers(0, 256, 3)
    return Image.fromarray(np.clip(image + random.normal(0, 6, image.shape), 0, 255).astype(np.uint8))


class Pillow(unittest.TestCase):
    def check(self, kind, mode, size, level, reference, sources):
        with tempfile.TemporaryDirectory() as folder:
            for i, (image, settings) in enumerate(sources):
                (Path(folder) / "data/c").mkdir(parents=True, exist_ok=True)
                image.save(Path(folder) / f"data/c/{i:03}.jpg", "JPEG", **settings)
            raw = Path(folder) / "raw"
            subprocess.run([PROBE, f"{folder}/data", "train", str(size), mode, raw], check=True, stdout=subprocess.DEVNULL)
            ours = np.fromfile(raw, np.uint8).reshape(-1, size, size, 3).astype(int)
            for i, pixels in enumerate(ours):
                theirs = np.asarray(reference(Image.open(f"{folder}/data/c/{i:03}.jpg").convert("RGB"))).astype(int)
                worst = np.abs(pixels - theirs).max()
                self.assertLessEqual(worst, level, f"{kind} {i}: {sources[i][1]}")

    def settings(self):
        return [{"quality": q, "subsampling": s, "progressive": p} for q in (50, 90, 97) for s in (0, 1, 2) for p in (False, True)]

    def test_decoded(self):
        size = 60  # resized to its own size, a picture stays as it is: what we see is the decoder
        colour = [(picture(size, size, i), s) for i, s in enumerate(self.settings())]
        other = [(picture(size, size, 50).convert("L"), {"quality": 85}), (picture(size, size, 51).convert("CMYK"), {"quality": 85})]
        self.check("decoded", "stretch", size, 1, lambda image: image, colour + other)

    def test_resized(self):
        for size in (32, 97, 224):
            sources = [(picture(w, h, w), {"quality": 90}) for w, h in ((500, 375), (375, 500), (64, 64), (1000, 31), (33, 700), (224, 224))]
            self.check(f"to {size}", "stretch", size, 2, lambda image: image.resize((size, size), Image.Resampling.BILINEAR), sources)

    def test_resized_and_cropped(self):
        size = 96

        def reference(image):
            short = min(image.size)
            width, height = (size * image.width // short, size * image.height // short)
            left, top = round((width - size) / 2.0), round((height - size) / 2.0)
            return image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))

        sources = [(picture(w, h, w), {"quality": 90}) for w, h in ((500, 375), (375, 500), (64, 77), (301, 299), (96, 96))]
        self.check("cropped", "crop", size, 2, reference, sources)


if __name__ == "__main__":
    unittest.main()
