"""What is left of each class when the test has its part."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from trainmaster_automl.errors import DataProblem

_LEAST_LEFT = 2  # one to learn from, one to validate by


def check_class_sizes(labels: Any, classes: Sequence[str], test_fraction: float, what: str) -> None:
    """Raises ``DataProblem``: after the test's part some class is too small to be learnt and validated.

    Args:
        labels: of what the trials see; places in ``classes``.
        what: they are, in the plural.
    """
    left = np.bincount(labels, minlength=len(classes))
    rare = ["%s (%d)" % (name, count) for name, count in zip(classes, left) if count < _LEAST_LEFT]
    if rare:
        raise DataProblem(
            "With %g of the %s kept for the test, too few are left of %s; each class needs %d besides. Make --test-fraction "
            "(test_fraction) smaller, or give these classes more %s."
            % (test_fraction, what, ", ".join(rare[:10]), _LEAST_LEFT, what)
        )
