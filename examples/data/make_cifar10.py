"""Writes small files in the binary format of CIFAR-10, with made-up pictures: to try what reads the real ones.

    python examples/data/make_cifar10.py FOLDER [--images 2000]

The format: each file is a row of records, one byte of label (0 to 9) and 3,072 bytes of picture: 1,024 red, 1,024
green, 1,024 blue, each row by row. ``data_batch_1.bin`` to ``data_batch_5.bin`` are to train on, ``test_batch.bin`` to
test with.
https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = 5
SEED = 20_240_229


def make_cifar10(folder: Path, images: int = 2000) -> None:
    """Write ``images`` pictures to train on and a fifth of that to test with. Writing again changes nothing.

    Every class has a pattern of 8 × 8 coloured tiles; a picture is that pattern, shifted by a few pixels and noisy.
    """
    rng = np.random.default_rng(SEED)
    patterns = rng.integers(40, 216, size=(len(NAMES), 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    folder.mkdir(parents=True, exist_ok=True)
    files = {f"data_batch_{n + 1}.bin": images // BATCHES for n in range(BATCHES)}
    for name, count in {**files, "test_batch.bin": images // 5}.items():
        labels = rng.integers(len(NAMES), size=count)
        shifts = rng.integers(-2, 3, size=(count, 2))
        pictures = np.stack(
            [np.roll(patterns[label], shift, axis=(1, 2)) for label, shift in zip(labels, shifts, strict=True)]
        )
        noisy = np.clip(pictures + rng.normal(0, 40, size=pictures.shape), 0, 255)
        records = np.concatenate([labels[:, None], noisy.reshape(count, -1)], axis=1).astype(np.uint8)
        partial = folder / f".{name}.partial"
        partial.write_bytes(records.tobytes())
        partial.replace(folder / name)
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write made-up pictures in CIFAR-10's binary format.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=2000, help="pictures to train on")
    options = parser.parse_args()
    make_cifar10(options.folder, options.images)
    print(f"{options.folder}: {options.images} pictures to train on, {options.images // 5} to test with.")


if __name__ == "__main__":
    main()
