"""The routes that every kind of record has: made, shown, listed, changed, deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from api.app.unit_of_work import AppContextDep
from api.protocols.vertex.answers import NotServed, answer
from api.protocols.vertex.operations.deletions import view_of
from api.protocols.vertex.proto import Message, camel
from api.protocols.vertex.records import lists, service
from api.protocols.vertex.records.kinds import Kind, check_id
from api.protocols.vertex.records.principals import RecordTransaction, PrincipalDep
from api.protocols.vertex.request_types import PARENT, ParentDep, RawBody
from core.db.tables import VertexRecord
from core.domain.errors import InvalidRequest

_TYPES: Final = "type.googleapis.com/google.cloud.aiplatform.v1"
Show = Callable[[RecordTransaction, list[VertexRecord]], list[dict[str, Any]]]
Make = Callable[[RecordTransaction, Kind, str, Message], VertexRecord]
Change = Callable[[RecordTransaction, Kind, str, Message, str], VertexRecord]


def _list_query(
    filter: Annotated[str, Query()] = "",  # noqa: A002 (as Google names it)
    pageSize: Annotated[int, Query(ge=0)] = 0,  # noqa: N803
    pageToken: Annotated[str, Query(max_length=2_000)] = "",  # noqa: N803
    orderBy: Annotated[str, Query(max_length=500)] = "",  # noqa: N803
) -> lists.ListQuery:
    return lists.ListQuery(filter, pageSize, pageToken, orderBy)


@dataclass(frozen=True, slots=True)
class ResourceRoutes:
    """One kind's collections. ``path``: where they lie below a location, with names in braces for what varies.
    ``above``: the kind that they are a part of.

    ``show``: how some of them are answered. ``make`` and ``change``: of one.
    """

    kind: Kind
    path: str
    above: Kind | None = None
    show: Show = lambda room, records: [service.view(room, record) for record in records]
    make: Make = service.create
    change: Change = service.change

    @property
    def one(self) -> str:
        return f"{self.path}/{{resource}}"

    def permission(self, what: str) -> str:
        """As the real API's permissions are called."""
        return f"{camel(self.kind.word)}s.{what}"


def place_of(request: Request, path: str) -> str:
    """``path`` with the names that the request has in it."""
    return path.format(**request.path_params)


def _id_of(kind: Kind) -> Any:
    """The query's parameter that names a new one."""
    return Query("", alias=kind.id_parameter, max_length=500)


def add_resource_routes(router: APIRouter, shelf: ResourceRoutes) -> None:
    kind = shelf.kind

    def create(
        request: Request,
        body: RawBody,
        parent: ParentDep,
        visitor: PrincipalDep,
        context: AppContextDep,
        told: str = _id_of(kind),
    ) -> Response:
        name = check_id(told, f"{kind.word}_id") if told else ""
        path = f"{place_of(request, shelf.path)}/{name}"
        with context.write() as work:
            room = visitor.enter(work, parent, "member", verb=shelf.permission("create"))
            _demand_above(room, shelf, path)
            record = shelf.make(room, kind, path, Message(body, kind.word))
            (shown,) = shelf.show(room, [record])
        return answer(_operation(kind, shown, "create") if kind.is_slow else shown)

    def list_all(
        request: Request,
        parent: ParentDep,
        visitor: PrincipalDep,
        context: AppContextDep,
        query: Annotated[lists.ListQuery, Depends(_list_query)],
    ) -> Response:
        path = place_of(request, shelf.path)
        with context.read() as work:
            room = visitor.enter(work, parent, "viewer", verb=shelf.permission("list"))
            _demand_above(room, shelf, f"{path}/-")
            records, more = lists.list_records(room, kind, path, query)
            shown = shelf.show(room, records)
        return answer({**({_listed(kind): shown} if shown else {}), **more})

    def get(request: Request, parent: ParentDep, visitor: PrincipalDep, context: AppContextDep) -> Response:
        with context.read() as work:
            room = visitor.enter(work, parent, "viewer", verb=shelf.permission("get"))
            (shown,) = shelf.show(room, [service.find(room, kind, place_of(request, shelf.one))])
        return answer(shown)

    def patch(
        request: Request,
        body: RawBody,
        parent: ParentDep,
        visitor: PrincipalDep,
        context: AppContextDep,
        updateMask: Annotated[str, Query(max_length=1_000)] = "",  # noqa: N803
        allowMissing: Annotated[bool, Query()] = False,  # noqa: N803
    ) -> Response:
        if allowMissing:
            raise InvalidRequest(
                f"allow_missing is not served by this platform; create the {kind.word} first.", field="allow_missing"
            )
        path = place_of(request, shelf.one)
        with context.write() as work:
            room = visitor.enter(work, parent, "member", verb=shelf.permission("update"))
            record = shelf.change(room, kind, path, Message(body, kind.word), updateMask)
            (shown,) = shelf.show(room, [record])
        return answer(_operation(kind, shown, "update") if kind.is_slow else shown)

    def delete(request: Request, parent: ParentDep, visitor: PrincipalDep, context: AppContextDep) -> Response:
        path = place_of(request, shelf.one)
        with context.write() as work:
            room = visitor.enter(work, parent, "member", verb=shelf.permission("delete"), deletes=True)
            service.remove(room, kind, path)
        return answer(view_of(parent.name_of(path), is_done=True))

    def verb(request: Request, action: str, parent: ParentDep, visitor: PrincipalDep) -> Response:
        del request, parent, visitor
        raise NotServed(f"{kind.noun}:{action[:50]} is not served by this platform.")

    def add(path: str, handler: Callable[..., Response], *methods: str) -> None:
        name = f"vertex_{kind.word}_{handler.__name__}"
        router.add_api_route(f"{PARENT}/{path}", handler, methods=list(methods), name=name)

    add(shelf.path, create, "POST")
    add(shelf.path, list_all, "GET")
    add(f"{shelf.path}:{{action}}", verb, "POST", "GET")
    add(f"{shelf.one}:{{action}}", verb, "POST", "GET")
    add(shelf.one, get, "GET")
    add(shelf.one, patch, "PATCH")
    add(shelf.one, delete, "DELETE")


def _demand_above(room: RecordTransaction, shelf: ResourceRoutes, path: str) -> None:
    """What the collection of ``path`` is a part of is there. Raises ``NotFound``."""
    if shelf.above is not None:
        service.find(room, shelf.above, path.rsplit("/", 2)[0])


def _listed(kind: Kind) -> str:
    """As the answer's list is called: the whole word, which is not always the collection's."""
    word = camel(kind.word)
    return word if word.endswith("Series") else f"{word}s"


def _operation(kind: Kind, shown: dict[str, Any], what: str) -> dict[str, Any]:
    """Done already: nobody needs to ask again."""
    return {
        "name": f"{shown['name']}/operations/{what}",
        "done": True,
        "response": {"@type": f"{_TYPES}.{kind.message}", **shown},
    }
