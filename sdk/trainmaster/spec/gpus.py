"""GPUs of one replica: whole ones, or a part of one."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from trainmaster.spec.errors import FieldError
from trainmaster.spec.fields import kind_of
from trainmaster.spec.number_literals import as_text

# No machine has more.
MAX_GPUS: Final = 64
# Of a binary fraction that was meant as thousandths, such as 0.3.
_ROUNDING: Final = 1e-9


def read_gpus(value: Any) -> int | float:
    """A number of whole GPUs, or a part of one in thousandths; raises :class:`FieldError`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{0,9}(\.[0-9]{1,9})?\s*", value) and value.strip():
            raise FieldError("must be a number, not text", f"write {float(value):g} without quotes")
        raise FieldError(f"must be a whole number, or a part of one GPU such as 0.5, not {kind_of(value)}")
    if value < 0:
        raise FieldError(f"must be at least 0, not {as_text(value)}")
    if value > MAX_GPUS:
        raise FieldError(f"must be at most {MAX_GPUS}, not {as_text(value)}")
    if value == int(value):
        return int(value)
    if value > 1:
        raise FieldError(
            f"{as_text(value)} is neither whole nor a part of one GPU",
            f"write {int(value)} or {int(value) + 1}, or a part such as 0.5",
        )
    milli = round(value * 1000)
    if milli not in range(1, 1000) or abs(value * 1000 - milli) > _ROUNDING:
        raise FieldError(
            f"{as_text(value)} is no number of thousandths of a GPU", f"write {min(999, max(1, milli)) / 1000:g}"
        )
    return milli / 1000


Gpus = Annotated[
    int | float,
    BeforeValidator(
        read_gpus,
        json_schema_input_type=Annotated[int, Field(ge=0, le=MAX_GPUS)] | Annotated[float, Field(ge=0.001, le=0.999)],
    ),
]
