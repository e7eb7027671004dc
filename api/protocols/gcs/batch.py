"""Batch requests: many small requests in one; Google's clients delete many objects this way.

https://cloud.google.com/storage/docs/batch
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import BytesParser, Parser
from http import HTTPStatus
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from api.app import audit
from api.app.unit_of_work import AppContext, AppContextDep
from api.protocols.gcs.answers import StorageRoute
from api.protocols.gcs.callers import StorageCaller, StorageWriter, find_bucket
from api.protocols.gcs.objects import Preconditions, delete_object
from api.protocols.gcs.parameters import refuse_unknown_parameters
from api.protocols.kit.errors import NotServed
from core.domain.errors import InvalidRequest, TrainmasterError

router = APIRouter(route_class=StorageRoute, include_in_schema=False)

LIMIT: Final = 1_000  # requests of one batch, as many as google-cloud-storage sends
_OBJECT: Final = re.compile(r"/storage/v1/b/([^/]+)/o/(.+)")
_NUMBERS: Final = (
    "ifGenerationMatch",
    "ifGenerationNotMatch",
    "ifMetagenerationMatch",
    "ifMetagenerationNotMatch",
    "generation",
)


@router.post("/batch/storage/v1")
async def batch(request: Request, caller: StorageWriter, context: AppContextDep) -> Response:
    """Each part gets its own response. Only deletions are served; Cloud Storage takes no uploads or downloads
    either.
    """
    parts = _parts(request.headers.get("content-type", ""), await request.body())
    answers = await run_in_threadpool(lambda: [_run_part(context, caller, part) for part in parts])
    mark = f"batch_{secrets.token_hex(16)}"
    body = b"".join(f"--{mark}\r\n".encode() + answer + b"\r\n" for answer in answers) + f"--{mark}--\r\n".encode()
    # gcsfs does not unquote the boundary.
    return Response(body, media_type=f"multipart/mixed; boundary={mark}")


def _parts(content_type: str, body: bytes) -> list[Message]:
    """Parts of the multipart body. Raises ``InvalidRequest`` if the body is not a batch."""
    head = f"Content-Type: {content_type}\r\nMIME-Version: 1.0\r\n\r\n".encode()
    message = BytesParser().parsebytes(head + body)
    if message.get_content_type() != "multipart/mixed" or not message.get_boundary() or not message.is_multipart():
        raise InvalidRequest("A batch is multipart/mixed, with a boundary, of parts application/http.", field="body")
    parts = [part for part in message.get_payload() if isinstance(part, Message)]
    if len(parts) > LIMIT:
        raise InvalidRequest(f"A batch has at most {LIMIT:,} requests; send several.", field="body")
    return parts


def _run_part(context: AppContext, caller: StorageCaller, part: Message) -> bytes:
    """Run one part's request; return its whole HTTP response as a part of the batch's response."""
    code = None
    try:
        _delete(context, caller, part)
        status, body = 204, b""
    except TrainmasterError as error:
        refused = StorageRoute.response_to(error)
        status, body, code = refused.status_code, bytes(refused.body), error.code
    audit.note_part("object", _target_of(part), status, code)
    name = str(part.get("Content-ID", "")).strip().strip("<>")
    shown = f"Content-ID: <response-{name}>\r\n" if re.fullmatch(r"[!-~ ]{1,200}", name) else ""
    kind = "Content-Type: application/json; charset=UTF-8\r\n" if body else ""
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{kind}Content-Length: {len(body)}\r\n\r\n"
    return f"Content-Type: application/http\r\n{shown}\r\n{head}".encode() + body


def _request_of(part: Message) -> tuple[str, SplitResult, str]:
    """Method, address, and the headers that follow."""
    payload = part.get_payload(decode=True)
    text = payload.decode("utf-8", "replace") if isinstance(payload, bytes) else ""
    line, _, rest = text.lstrip("\r\n").partition("\n")
    method, _, target = line.strip().partition(" ")
    return method, urlsplit(target.rpartition(" ")[0] if " HTTP/" in target else target), rest


def _target_of(part: Message) -> str:
    """Bucket and name of the object, or else the address."""
    path = _request_of(part)[1].path
    match = _OBJECT.fullmatch(path)
    return path if match is None else f"{unquote(match[1])}/{unquote(match[2])}"


def _delete(context: AppContext, caller: StorageCaller, part: Message) -> None:
    method, address, rest = _request_of(part)
    match = _OBJECT.fullmatch(address.path)
    if method != "DELETE" or match is None:
        raise NotServed(
            f"{method[:10]} {address.path[:200]} in a batch is not served by this platform; deleting objects is."
        )
    headers = Parser().parsestr(rest.lstrip("\r\n"), headersonly=True)
    if "authorization" in headers:
        raise NotServed(
            "Authorization in a part of a batch is not served; the token of the batch counts for all of it."
        )
    query = dict(parse_qsl(address.query, keep_blank_values=True))
    refuse_unknown_parameters(query, dict(headers.items()), _NUMBERS)
    bucket = find_bucket(context, caller, unquote(match[1]), writes=True)
    delete_object(bucket, unquote(match[2]), Preconditions(*_numbers(query)))


def _numbers(query: Mapping[str, str]) -> Iterator[int | None]:
    for name in _NUMBERS:
        text = query.get(name)
        if text is not None and not re.fullmatch(r"[0-9]{1,18}", text):
            raise InvalidRequest(f"Invalid argument: {name} is a number.", field=name)
        yield None if text is None else int(text)
