"""Dependencies of routes: preconditions, lengths, and the server's base URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Query, Request

from api.http.routing import content_length
from api.protocols.gcs.answers import ConditionNotMet, NotChanged
from api.protocols.gcs.objects import Preconditions, etag_of
from api.protocols.kit.errors import not_served
from core.domain.errors import InvalidRequest
from core.storage.tree import TreeEntry

_Number = Annotated[int | None, Query(ge=0, lt=10**18)]


def _condition(
    ifGenerationMatch: _Number = None,  # noqa: N803 (as Google names it)
    ifGenerationNotMatch: _Number = None,  # noqa: N803
    ifMetagenerationMatch: _Number = None,  # noqa: N803
    ifMetagenerationNotMatch: _Number = None,  # noqa: N803
) -> Preconditions:
    return Preconditions(ifGenerationMatch, ifGenerationNotMatch, ifMetagenerationMatch, ifMetagenerationNotMatch)


def _object_condition(condition: UploadCondition, generation: _Number = None) -> Preconditions:
    return replace(condition, generation=generation)


def _of_bucket(
    ifMetagenerationMatch: _Number = None,  # noqa: N803
    ifMetagenerationNotMatch: _Number = None,  # noqa: N803
) -> Preconditions:
    return Preconditions(meta_match=ifMetagenerationMatch, meta_not_match=ifMetagenerationNotMatch)


BucketCondition = Annotated[Preconditions, Depends(_of_bucket)]
# For an upload, and for an existing object.
UploadCondition = Annotated[Preconditions, Depends(_condition)]
ObjectCondition = Annotated[Preconditions, Depends(_object_condition)]


def demand_etag(headers: Mapping[str, str], entry: TreeEntry) -> None:
    """Check ``If-Match`` and ``If-None-Match`` against the object's etag, quoted or not.

    Raises ``ConditionNotMet``, or its subclass ``NotChanged`` if the client is up to date.
    """
    if "if-match" in headers and not _names(headers["if-match"], entry):
        raise ConditionNotMet
    if "if-none-match" in headers and _names(headers["if-none-match"], entry):
        raise NotChanged("Not modified.")


def _names(header: str, entry: TreeEntry) -> bool:
    tags = {item.strip().removeprefix("W/").strip('"') for item in header.split(",")}
    return bool(tags & {"*", etag_of(entry)})


def body_bytes(request: Request) -> int | None:
    """``Content-Length``; ``None`` if absent."""
    return content_length(request.headers.get("content-length", ""))


def total_bytes(request: Request) -> int | None:
    """Size of the whole object, if the request that starts a session declares it. Raises ``InvalidRequest``."""
    text = request.headers.get("x-upload-content-length")
    if text is None:
        return None
    total = content_length(text.strip())
    if total is None:
        raise InvalidRequest(
            f"Invalid X-Upload-Content-Length: {text[:50]!r} is no number of bytes.", field="x-upload-content-length"
        )
    return total


def demand_plain(request: Request) -> None:
    """Raises ``NotServed`` for an encoded body, which would be stored encoded without a trace of that."""
    if request.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise not_served("Content-Encoding", "an upload that is compressed is")


def url_of(request: Request) -> str:
    """The base URL that the client used; upload sessions continue there."""
    return str(request.base_url).rstrip("/")
