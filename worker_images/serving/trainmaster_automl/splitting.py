"""Check of the class sizes that remain for the trials."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from trainmaster_automl.errors import DataProblem

_LEAST_LEFT = 2  # one for training, one for validation


def check_class_sizes(labels: Any, classes: Sequence[str], test_fraction: float, label: str) -> None:
    """Raises ``DataProblem``: without the test's part some class is too small for training and validation.

    Args:
        labels: of the trials' rows or images; indices into ``classes``.
        label: plural noun for the message: "rows" or "images".
    """
    left = np.bincount(labels, minlength=len(classes))
    rare = ["%s (%d)" % (name, count) for name, count in zip(classes, left) if count < _LEAST_LEFT]
    if rare:
        raise DataProblem(
            "With %g of the %s reserved for the test, too few are left of %s; each class needs %d more. Make "
            "--test-fraction (test_fraction) smaller, or give these classes more %s."
            % (test_fraction, label, ", ".join(rare[:10]), _LEAST_LEFT, label)
        )
