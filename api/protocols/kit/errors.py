"""Errors that several protocols answer with a status of their own, and the refusal of unknown fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from core.domain.errors import Conflict, InvalidRequest


class NotServed(InvalidRequest):
    """A part of the foreign API that this platform does not have; the message names it."""


class AlreadyExists(Conflict):
    """A name that is taken. Clients that get or create rely on this error."""


def refuse_unknown(
    sent: Mapping[str, Any],
    served: Collection[str],
    absent: Mapping[str, str],
    *,
    empty: Collection[Any] = (),
    not_served: Callable[[str, str], NotServed],
    unknown: Callable[[str], InvalidRequest],
) -> None:
    """Refuse the first field or parameter that is not in ``served``: it would be ignored silently.

    Args:
        absent: what only the foreign API has -> its description, for the error ``not_served``.
        empty: values with which a field in ``absent`` asks for nothing.
    """
    for name, value in sent.items():
        if name in served:
            continue
        if name not in absent:
            raise unknown(name)
        if value not in empty:
            raise not_served(name, absent[name])
