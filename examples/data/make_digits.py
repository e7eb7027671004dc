"""Writes scikit-learn's handwritten digits as files: ``train.npz`` and ``test.npz``, always the same split.

    python examples/data/make_digits.py FOLDER

Each file holds ``images`` (n × 8 × 8, float32, 0 to 1) and ``labels`` (n, int64, 0 to 9).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

TEST_IMAGES = 360  # a fifth of 1,797
SPLIT_SEED = 20_240_229


def make_digits(folder: Path) -> tuple[int, int]:
    """Write both files into ``folder``; returns how many images each of them holds. Writing again changes nothing."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", train), ("test", test)):
        partial = folder / f".{name}.partial.npz"
        np.savez(partial, images=images[chosen], labels=labels[chosen])
        partial.replace(folder / f"{name}.npz")
    return len(train), len(test)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the digits data set as train.npz and test.npz.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    train, test = make_digits(folder)
    print(f"{folder}: {train} images to train on, {test} to test with.")


if __name__ == "__main__":
    main()
