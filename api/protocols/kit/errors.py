"""Errors that several protocols answer with a status of their own, and the refusal of unknown fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from core.domain.errors import Conflict, InvalidRequest

Model = TypeVar("Model", bound=BaseModel)
_UNION_MEMBERS: Final = ("constrained-int", "str")  # which pydantic adds to paths


class NotServed(InvalidRequest):
    """A part of the foreign API that this platform does not have; the message names it."""


class AlreadyExists(Conflict):
    """A name that is taken. Clients that get or create rely on this error."""


def mistakes_of(error: ValidationError | RequestValidationError, *, limit: int = 1, above: int = 0) -> str:
    """The mistakes that pydantic found, ``limit`` at most. Fields that a model forbids are not served.

    ``above``: parts of each path that are not the client's, such as ``body``.
    """
    mistakes = []
    for item in error.errors()[:limit]:
        parts = item["loc"][above:] or item["loc"]
        path = ".".join(str(part) for part in parts if part not in _UNION_MEMBERS)[:200]
        message = str(item["msg"]).removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            mistakes.append(f"{path} is not served by this platform: leave it out")
        else:
            mistakes.append(f"{path}: {message}" if path else message)
    return "; ".join(mistakes)


def parse_request(model: type[Model], fields: Mapping[str, Any], where: str) -> Model:
    """A request of our own API from a foreign one's. ``where``: the foreign message. Raises ``InvalidRequest``."""
    try:
        return model(**fields)
    except ValidationError as error:
        raise InvalidRequest(f"{where}: {mistakes_of(error)}.", field=where) from None


def not_served(name: str, what: str) -> NotServed:
    """The error for a field or parameter. ``what``: such as "retention is", with an alternative after a semicolon if
    leaving it out is not the advice.
    """
    thing, _, advice = what.partition("; ")
    return NotServed(f"{name}: {thing} not served by this platform; {advice or 'leave it out'}.", field=name)


def refuse_unknown(
    sent: Mapping[str, Any],
    served: Collection[str],
    absent: Mapping[str, str],
    *,
    empty: Collection[Any] = (),
    refusal: Callable[[str, str], NotServed] = not_served,
    unknown: Callable[[str], InvalidRequest],
) -> None:
    """Refuse the first field or parameter that is not in ``served``: it would be ignored silently.

    Args:
        absent: what only the foreign API has -> its description, for the error ``refusal``.
        empty: values with which a field in ``absent`` asks for nothing.
    """
    for name, value in sent.items():
        if name in served:
            continue
        if name not in absent:
            raise unknown(name)
        if value not in empty:
            raise refusal(name, absent[name])
