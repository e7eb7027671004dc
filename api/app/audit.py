"""What a request leaves in the audit log: collected while it is served, written in its own transaction.

Every request has a record (``api.http.audit`` makes it). Authentication, checks of access and the session's listeners
add to it. The first transaction that the request commits writes its entry: no change is committed without one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from http.client import responses
from typing import Any, Final

from starlette.types import Scope

from api.app.audited_routes import DOWNLOADS, EXCLUDED, IN_PIECES
from api.app.fair_use import TokenBuckets, address_of

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PREFIX: Final = "/api/v1"
_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
# Parameters that name no object, and those whose name is no kind: the segment before them is.
_NO_OBJECTS: Final = frozenset({"project", "namespace", "location", "action", "protocol"})
_NO_KINDS: Final = frozenset({"name", "resource", "path", "rest", "number", "ref", "model_id", "token_id", "method"})
_TEXT_LIMIT: Final = 500  # characters of an object's id, a route, a name
MAX_PARTS: Final = 1_000


@dataclass(slots=True, eq=False)
class AuditRecord:
    """One request. ``object``: kind and id. ``parts``: of a request for many objects, the id,
    status, error code and project of each.
    """

    scope: Scope
    at: datetime
    pieces: TokenBuckets
    user: str = ""
    user_id: str | None = None
    token_id: str | None = None
    project_id: str | None = None
    project: str | None = None
    object: tuple[str, str] | None = None
    parts: list[tuple[str, int, str | None, str | None]] = field(default_factory=list)
    code: str | None = None
    is_committed: bool = False
    is_wrong_token: bool = False
    is_skipped: bool = False  # it changed nothing, such as a dry run

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def route(self) -> str:
        """The template of the address; empty before the request is routed, or where there is no route."""
        template = str(getattr(self.scope.get("route"), "path", ""))
        path = str(self.scope["path"])
        return f"{_PREFIX}{template}" if path.startswith(_PREFIX) and not template.startswith(_PREFIX) else template

    @property
    def action(self) -> str:
        route: Any = self.scope.get("route")
        name = getattr(route, "operation_id", None) or getattr(route, "name", None) or "none"
        protocol = str(self.scope["path"]).split("/")[1]
        if protocol not in ("api", "v1") and not name.startswith(protocol):
            name = f"{protocol}_{name}"
        verb = self.scope.get("path_params", {}).get("action")
        return f"{name}.{verb}"[:_TEXT_LIMIT] if verb else str(name)

    @property
    def is_change(self) -> bool:
        return self.method not in SAFE_METHODS and f"{self.method} {self.route}" not in EXCLUDED

    @property
    def is_download(self) -> bool:
        # A job's script reads its own data by ranges, all the time.
        if self.method != "GET" or self.route not in DOWNLOADS or self.user.startswith("attempt:"):
            return False
        return not self.route.startswith("/storage/") or b"alt=media" in self.scope["query_string"]

    @property
    def piece(self) -> str | None:
        """What repeated requests for pieces of one object have in common; ``None``: this is no piece."""
        if not self.is_download and f"{self.method} {self.route}" not in IN_PIECES:
            return None
        return f"{self.token_id} {self.user} {self.action} {self.scope['path']} {self.object}"

    def is_repeated(self) -> bool:
        """Whether this is a piece of an object of which another piece was recorded within the last minute."""
        piece = self.piece
        if piece is None:
            return False
        if self.pieces.wait_s(piece):
            return True
        self.pieces.take(piece)
        return False

    @property
    def expected_status(self) -> int:
        """The status if all goes well."""
        return int(getattr(self.scope.get("route"), "status_code", None) or 200)

    def rows(self, status: int, changes: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """The entries' columns: one, or one for each of ``parts``."""
        kind, name = self._object(changes or [])
        row = {
            "at": self.at,
            "action": self.action,
            "method": self.method,
            "route": self.route or _stored(str(self.scope["path"])),
            "user": self.user,
            "user_id": self.user_id,
            "token_id": self.token_id,
            "address": address_of(self.scope),
            "object_kind": kind,
            "object_id": name,
            "project_id": self.project_id,
            "project": self.project if self.project or self.project_id else self._project_of_path(),
            "outcome": "refused" if is_refusal(status) else "allowed",
            "status": status,
            "code": (self.code or responses.get(status, "error").lower().replace(" ", "_"))
            if is_refusal(status)
            else None,
            "request_id": str(self.scope["state"].get("request_id", "")),
            "repeats": 1,
            "changes": changes or [],
        }
        if not self.parts or is_refusal(status):
            return [row]
        return [
            {**row, "object_id": _stored(part), "status": own, "code": code, "project_id": None, "project": project,
             "outcome": "refused" if is_refusal(own) else "allowed"}
            for part, own, code, project in self.parts
        ]  # fmt: skip

    def entry_of(self, kind: str, name: str, label: str) -> dict[str, Any]:
        """The entry of a request that creates an object by one statement, to be written by that statement."""
        change = {"kind": kind, "id": name, "verb": "created", "fields": {"name": [None, label]}}
        (row,) = self.rows(self.expected_status, [change])
        return row if self.object else {**row, "object_kind": kind, "object_id": name}

    def _object(self, changes: list[dict[str, Any]]) -> tuple[str, str]:
        found = self.object or self._object_of_path()
        if found is None and self.route.endswith("{project}"):
            found = "project", str(self.scope["path_params"]["project"])
        if found is None and changes:
            found = changes[0]["kind"], changes[0]["id"]
        if found is None and "{project}" in self.route:
            found = "project", str(self.scope["path_params"]["project"])
        kind, name = found or (_kind_before(self.route, len(self.route)), "")
        return kind, _stored(name)

    def _project_of_path(self) -> str | None:
        """Also where the caller may not see it."""
        given = self.scope.get("path_params", {})
        name = given.get("project", given.get("namespace"))
        return None if name is None else _stored(str(name))

    def _object_of_path(self) -> tuple[str, str] | None:
        given: Mapping[str, Any] = self.scope.get("path_params", {})
        named = [match for match in _PARAMETER.finditer(self.route) if match[1] not in _NO_OBJECTS]
        if not named:
            return None
        last = named[-1]
        kind = _kind_before(self.route, last.start()) if last[1] in _NO_KINDS else last[1]
        return kind, "/".join(str(given.get(match[1], "")) for match in named)


def _stored(text: str) -> str:
    """As both databases can store it."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")[:_TEXT_LIMIT]


def _kind_before(route: str, end: int) -> str:
    """The last plain segment of the route before ``end``, in the singular."""
    plain = [part for part in route[:end].strip("/").split("/") if part and "{" not in part]
    word = re.split(r"[:.]", plain[-1])[0] if plain else "page"
    return {"o": "object", "policy": "policy"}.get(word, singular(word))


def is_refusal(status: int) -> bool:
    """499 is how Cloud Storage answers that an upload was given up, as wanted."""
    return status >= 400 and status != 499


def singular(word: str) -> str:
    for plural, ending in (("ies", "y"), ("ses", "s"), ("s", "")):
        if word.endswith(plural) and word not in ("series", "alias"):
            return word.removesuffix(plural) + ending
    return word


_current: Final[ContextVar[AuditRecord | None]] = ContextVar("audit_record", default=None)


def current() -> AuditRecord | None:
    """The record of the request that is being served."""
    return _current.get()


@contextmanager
def recording(record: AuditRecord | None) -> Iterator[None]:
    """``None``: what happens in the block is no deed of the request's caller, and leaves no entry."""
    token = _current.set(record)
    try:
        yield
    finally:
        _current.reset(token)


def note_caller(user: str, user_id: str | None = None, token_id: str | None = None) -> None:
    """Who sent the request."""
    record = _current.get()
    if record is not None and not record.user:
        record.user, record.user_id, record.token_id = user, user_id, token_id


def note_project(project_id: str | None, project: str | None) -> None:
    """The project that the request is about; the last one that is noted counts."""
    record = _current.get()
    if record is not None:
        record.project_id, record.project = project_id, project


def note_object(kind: str, name: str) -> None:
    """The object that the request is about; the first one that is noted counts."""
    record = _current.get()
    if record is not None and record.object is None:
        record.object = kind, name


def note_part(kind: str, name: str, status: int, code: str | None = None) -> None:
    """One of many objects that the request is about; each gets an entry of its own."""
    record = _current.get()
    if record is not None and len(record.parts) < MAX_PARTS:
        record.object = record.object or (kind, name)
        record.parts.append((name, status, code, record.project))


def note_error(code: str) -> None:
    record = _current.get()
    if record is not None:
        record.code = code


def note_wrong_token() -> None:
    """A token, login or code was wrong: recorded for reads, too."""
    record = _current.get()
    if record is not None:
        record.is_wrong_token = True


def skip() -> None:
    """The request changed nothing."""
    record = _current.get()
    if record is not None:
        record.is_skipped = True
