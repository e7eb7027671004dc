"""Data sets of images: one folder for each class, or a table with file names and classes."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from trainmaster_serving.image_model import as_pixels

from trainmaster_automl.options import DataProblem
from trainmaster_automl.rows import NOTHING, text_of
from trainmaster_automl.table_files import MISSING, read_table

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
LEAST_IMAGES = 20
LEAST_OF_A_CLASS = 3
# With a larger unreadable share, the whole data set is rejected.
_MOST_BROKEN = 0.1
_SIZES = (16, 32, 64, 96, 128)
_MOST_BYTES = 4 * 2**30
_HEAD = 50  # rows used to detect the column with the images' names


@dataclass(frozen=True)
class ImageData:
    """``pixels``: (images, side, side, 3) of uint8. ``labels``: indices into ``classes``, which are sorted."""

    pixels: Any
    labels: Any
    classes: list[str]
    notes: list[str]

    @property
    def size(self) -> int:
        return int(self.pixels.shape[1])


def read_images(folder: str, size: int, most: int, seed: int, file: str = "", target: str = "") -> ImageData:
    """All images, or a sample of ``most``.

    Args:
        size: of a side in pixels; 0: from the median of the images, 16 to 128.
        file: a table in the folder, with a column of image names, and their classes in the column ``target``; empty:
            one folder for each class.

    Raises:
        DataProblem: there are no class folders, too few images, or too many unreadable ones.
    """
    from PIL import Image, UnidentifiedImageError

    notes: list[str] = []
    classes, paths = _named_by(folder, file, target, notes) if file else _paths_of(folder)
    if len(paths) > most:
        chosen = np.random.default_rng(seed).choice(len(paths), most, replace=False)
        notes.append("A sample of %d of the %d images is used." % (most, len(paths)))
        paths = [paths[index] for index in sorted(chosen)]
    size = size or _size_of([path for path, _ in paths[:: max(1, len(paths) // 50)]])
    if len(paths) * size * size * 3 > _MOST_BYTES:
        raise DataProblem(
            "%d images of %d pixels a side do not fit into memory; make image_size smaller." % (len(paths), size)
        )
    pixels, labels, broken = [], [], []
    for path, label in paths:
        try:
            with Image.open(path) as image:
                pixels.append(as_pixels(image, size))
            labels.append(label)
        except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError):
            broken.append(os.path.relpath(path, folder))
    if broken:
        shown = "%d of %d images cannot be read, such as %s" % (len(broken), len(paths), ", ".join(broken[:3]))
        if len(broken) > _MOST_BROKEN * len(paths):
            raise DataProblem("%s. Repair or remove them." % shown)
        notes.append("%s; they are left out." % shown)
    if len(pixels) < LEAST_IMAGES:
        raise DataProblem("There are %d images; at least %d are needed." % (len(pixels), LEAST_IMAGES))
    counts = np.bincount(labels, minlength=len(classes))
    rare = ["%s (%d)" % (name, count) for name, count in zip(classes, counts) if count < LEAST_OF_A_CLASS]
    if rare:
        raise DataProblem(
            "Each class needs at least %d images; these have fewer: %s." % (LEAST_OF_A_CLASS, ", ".join(rare[:10]))
        )
    return ImageData(np.stack(pixels), np.asarray(labels, dtype=np.int64), classes, notes)


def _paths_of(folder: str) -> tuple[list[str], list[tuple[str, int]]]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataProblem("The data's folder cannot be read: %s." % error.strerror) from error
    paths = {}
    for name in names:
        inside = sorted(os.listdir(os.path.join(folder, name)))
        own = [
            os.path.join(folder, name, file_name) for file_name in inside if file_name.lower().endswith(IMAGE_SUFFIXES)
        ]
        if own:
            paths[name] = own
    if len(paths) < 2:
        raise DataProblem(
            "Images must be in one folder for each class; at least 2 such folders are needed, %d are there."
            % len(paths)
        )
    classes = sorted(paths)
    return classes, [(path, label) for label, name in enumerate(classes) for path in paths[name]]


def _named_by(folder: str, file: str, target: str, notes: list[str]) -> tuple[list[str], list[tuple[str, int]]]:
    table = read_table(folder, file, sys.maxsize, 0)
    names, rows, targets = table.split_target(target)
    index = next(
        (
            column
            for column in range(len(names))
            if all(str(row[column]).strip().lower().endswith(IMAGE_SUFFIXES) for row in rows[:_HEAD])
        ),
        None,
    )
    if index is None:
        raise DataProblem("No column of %s has names of images, such as cats/1.png." % file)
    known = [(str(row[index]).strip(), text_of(cell)) for row, cell in zip(rows, targets) if not _is_missing(cell)]
    if len(known) < len(rows):
        notes.append("%d of %d images have no %s; they are left out." % (len(rows) - len(known), len(rows), target))
    classes = sorted({label for _, label in known})
    if len(classes) < 2:
        raise DataProblem("%s is the same for every image; there is nothing to learn." % target)
    label_indices = {label: number for number, label in enumerate(classes)}
    return classes, [(os.path.join(folder, name), label_indices[label]) for name, label in known]


def _is_missing(cell: Any) -> bool:
    return text_of(cell) == NOTHING or str(cell).strip().lower() in MISSING


def _size_of(paths: list[str]) -> int:
    """The smallest supported size that is at least the median side of these images."""
    from PIL import Image

    sides = []
    for path in paths:
        try:
            with Image.open(path) as image:
                sides.append(max(image.size))
        except (OSError, ValueError, SyntaxError):
            continue
    middle = float(np.median(sides)) if sides else _SIZES[0]
    return next((size for size in _SIZES if size >= middle), _SIZES[-1])
