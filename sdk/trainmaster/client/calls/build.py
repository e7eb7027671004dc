"""Builders of :class:`Call` objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter

from trainmaster.client.steps import Call, HttpRequest, HttpResponse

M = TypeVar("M")

Param: TypeAlias = str | int | float | bool | datetime | Iterable[str] | None


@lru_cache(maxsize=128)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def path(template: str, **parts: str | int) -> str:
    """``template`` with each part percent-encoded as one segment, including slashes."""
    return template.format(**{name: quote(str(part), safe=":") for name, part in parts.items()})


def params(**values: Param) -> tuple[tuple[str, str], ...]:
    """Query parameters; ``None`` is left out, a list repeats its name."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        match value:
            case None:
                pass
            case bool():
                pairs.append((name, "true" if value else "false"))
            case str() | int() | float():
                pairs.append((name, str(value)))
            case datetime():
                pairs.append((name, value.isoformat()))
            case _:
                pairs.extend((name, item) for item in value)
    return tuple(pairs)


def typed(
    kind: type[M],
    operation: str,
    method: str,
    at: str,
    *,
    query: tuple[tuple[str, str], ...] = (),
    body: BaseModel | None = None,
    headers: Mapping[str, str] | None = None,
    is_repeatable: bool | None = None,
) -> Call[M]:
    """A call with a JSON response of type ``kind``.

    ``is_repeatable``: by default, all methods except POST.
    """
    adapter: TypeAdapter[M] = _adapter(cast("Any", kind))
    return Call(
        operation,
        _request(method, at, query, body, headers),
        lambda answer: adapter.validate_json(answer.content),
        method != "POST" if is_repeatable is None else is_repeatable,
    )


def without_content(
    operation: str,
    method: str,
    at: str,
    *,
    query: tuple[tuple[str, str], ...] = (),
    body: BaseModel | None = None,
) -> Call[None]:
    """A call with an empty response."""
    return Call(operation, _request(method, at, query, body, None), _nothing, method != "POST")


def _nothing(answer: HttpResponse) -> None:  # noqa: ARG001 (a decoder)
    return None


def _request(
    method: str,
    at: str,
    query: tuple[tuple[str, str], ...],
    body: BaseModel | None,
    headers: Mapping[str, str] | None,
) -> HttpRequest:
    if body is None:
        return HttpRequest(method, at, query, headers or {})
    content = body.model_dump_json(exclude_unset=True).encode()
    return HttpRequest(method, at, query, {"Content-Type": "application/json", **(headers or {})}, content)
