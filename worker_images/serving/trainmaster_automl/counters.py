"""Detection of columns that number the rows: they encode the order of the rows, which does not generalise to new rows.

The control plane has the same rule in ``core/domain/automl/counters.py``, to report it before any trial.
"""

from __future__ import annotations

import math
import re
from typing import Any, Sequence

from trainmaster_automl.rows import number_of

# ``id``, ``user_id``, ``PassengerId``, ``ID``, but not ``paid``; ``Unnamed: 0`` is how pandas reads its own index back.
_NAME = re.compile(
    r"(?:.*[_\W])?(?:id|idx|uid|rowid)|(?:row[ _]?)?(?:index|number|num|no|nr)\.?|unnamed: 0", re.IGNORECASE
)
_CAMEL = re.compile(r".*[a-z0-9]I[dD]")


def is_counter(name: str, cells: Sequence[Any], indices: Sequence[int]) -> bool:
    """Whether the column numbers the rows: distinct whole numbers, with the name of an id, or counting from 0 or 1.

    Args:
        indices: of the rows in the whole table, from 0, because the rows may be a sample.
    """
    values = [number_of(cell) for cell in cells]
    if not values or any(math.isnan(value) or not value.is_integer() for value in values):
        return False
    if len(set(values)) < len(values):
        return False
    steps = {value - index for value, index in zip(values, indices)}
    return is_name_of_id(name) or steps in ({0.0}, {1.0})


def is_name_of_id(name: str) -> bool:
    return bool(_NAME.fullmatch(name.strip()) or _CAMEL.fullmatch(name.strip()))
