"""Order of model lists: by name, or by ``order_by``.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.models/list
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy.orm import InstrumentedAttribute

from api.http.paging import make_cursor
from api.protocols.kit.errors import NotServed
from api.protocols.vertex.paging import Keyset, token_parts
from api.protocols.vertex.proto import snake
from core.db.engine import AnySelect
from core.db.tables import Model
from core.domain.errors import InvalidRequest

_TIMES: Final[dict[str, InstrumentedAttribute[Any]]] = {
    "create_time": Model.created_at,
    "update_time": Model.updated_at,
}
_DISPLAY_NAME: Final = "display_name"


@dataclass(frozen=True, slots=True)
class ModelOrder:
    """``field``: of ``_TIMES``; empty: by name, which no other model has."""

    field: str = ""
    is_descending: bool = False

    def page(self, statement: AnySelect, token: str, limit: int) -> AnySelect:
        """``statement`` in this order, after the page token, limited to ``limit`` + 1 rows. Raises
        ``InvalidRequest``.
        """
        keyset = Keyset(_TIMES.get(self.field, Model.name), Model.id, self.is_descending)
        if token:
            mark, value, model_id = token_parts(token, (str, str, str))
            if mark != self._mark:
                raise InvalidRequest(
                    "page_token: it belongs to a list in another order; start again without it.", field="page_token"
                )
            statement = keyset.after(statement, _time(value) if self.field else value, model_id)
        return keyset.ordered(statement).limit(limit + 1)

    def token(self, last: Model) -> str:
        """The page token after ``last``."""
        value = {"create_time": last.created_at, "update_time": last.updated_at}.get(self.field)
        return make_cursor(self._mark, last.name if value is None else value.isoformat(), last.id)

    @property
    def _mark(self) -> str:
        return f"{self.field}{' desc' if self.is_descending else ''}"


def read_order(text: str) -> ModelOrder:
    """``create_time desc``, as ``Model.list(order_by=…)`` sends it. Further fields are ignored: no two models are
    created in the same microsecond.

    Raises:
        InvalidRequest: no model has such a field.
        NotServed: for the display name, which is not the model's name here.
    """
    if not text.strip():
        return ModelOrder()
    terms = [term.split() for term in text.split(",")]
    fields = [snake(term[0]) if term else "" for term in terms]
    if any(
        field not in (*_TIMES, _DISPLAY_NAME) or term[1:] not in ([], ["asc"], ["desc"])
        for term, field in zip(terms, fields, strict=True)
    ):
        raise InvalidRequest(
            f"order_by: {text[:100]!r} is no order of models; one of {', '.join(_TIMES)} is, with desc or without.",
            field="order_by",
        )
    if fields[0] == _DISPLAY_NAME:
        raise NotServed(
            f"order_by: models are not ordered by display_name by this platform; one of {', '.join(_TIMES)} is "
            "served, or leave it out, and order them yourself."
        )
    return ModelOrder(fields[0], terms[0][1:] == ["desc"])


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise InvalidRequest("page_token: not a token of this list; start again without it.", field="page_token")
    return at
