"""The routes of every record kind: create, get, list, patch, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from api.app.unit_of_work import AppContextDep
from api.auth import Role
from api.protocols.kit.errors import NotServed
from api.protocols.kit.json_values import answer
from api.protocols.kit.paging import page_of
from api.protocols.vertex.long_running import deletion_view, operation_view, pack_any
from api.protocols.vertex.names import PARENT, ParentDep, RawBody
from api.protocols.vertex.paging import ListQueryDep
from api.protocols.vertex.proto import Message, camel
from api.protocols.vertex.records import lists, service
from api.protocols.vertex.records.kinds import RecordKind, check_id
from api.protocols.vertex.records.principals import PrincipalDep, RecordTransaction
from core.db.tables import VertexRecord
from core.domain.errors import InvalidRequest

Show = Callable[[RecordTransaction, list[VertexRecord]], list[dict[str, Any]]]
Make = Callable[[RecordTransaction, RecordKind, str, Message], VertexRecord]
Change = Callable[[RecordTransaction, RecordKind, str, Message, str], VertexRecord]


@dataclass(frozen=True, slots=True)
class ResourceRoutes:
    """Collections of one record kind. ``path``: path template below a location. ``above``: the parent's kind.

    ``show`` renders records; ``make`` creates one, ``change`` updates one.
    """

    kind: RecordKind
    path: str
    above: RecordKind | None = None
    show: Show = lambda tx, records: [service.view(tx, record) for record in records]
    make: Make = service.create
    change: Change = service.change

    @property
    def template(self) -> str:
        return f"{self.path}/{{resource}}"

    def permission(self, what: str) -> str:
        """The real API's permission name."""
        return f"{camel(self.kind.word)}s.{what}"


def record_path(request: Request, path: str) -> str:
    """The path template with the request's parameters filled in."""
    return path.format(**request.path_params)


def _id_of(kind: RecordKind) -> Any:
    """The query parameter with a new record's id."""
    return Query("", alias=kind.id_parameter, max_length=500)


def add_resource_routes(router: APIRouter, routes: ResourceRoutes) -> None:
    kind = routes.kind
    create, patch, delete = _writing_handlers(routes)
    list_all, get = _reading_handlers(routes)

    def verb(request: Request, action: str, parent: ParentDep, principal: PrincipalDep) -> Response:
        del request, parent, principal
        raise NotServed(f"{kind.noun}:{action[:50]} is not served by this platform.")

    def add(path: str, handler: Callable[..., Response], *methods: str) -> None:
        name = f"vertex_{kind.word}_{handler.__name__}"
        router.add_api_route(f"{PARENT}/{path}", handler, methods=list(methods), name=name)

    add(routes.path, create, "POST")
    add(routes.path, list_all, "GET")
    add(f"{routes.path}:{{action}}", verb, "POST", "GET")
    add(f"{routes.template}:{{action}}", verb, "POST", "GET")
    add(routes.template, get, "GET")
    add(routes.template, patch, "PATCH")
    add(routes.template, delete, "DELETE")


def add_verb(
    router: APIRouter,
    template: str,
    action: str,
    permission: str,
    apply: Callable[[RecordTransaction, str, Message], dict[str, Any]],
    *,
    on: str = "",
    reads: bool = False,
) -> None:
    """A route for a custom method, ``POST <template>:<action>``. Add it before :func:`add_resource_routes`.

    Args:
        template: path template of the resource that has the action.
        permission: the real API's name.
        on: what follows the template in the address.
        reads: whether the method changes nothing.
    """
    role: Role = "viewer" if reads else "member"

    def post(
        request: Request, body: RawBody, parent: ParentDep, principal: PrincipalDep, context: AppContextDep
    ) -> Response:
        with context.read() if reads else context.write() as work:
            tx = principal.open(work, parent, role, verb=permission)
            return answer(apply(tx, record_path(request, template), Message(body, action)))

    router.add_api_route(f"{PARENT}/{template}{on}:{action}", post, methods=["POST"], name=f"vertex_{permission}")


Handler = Callable[..., Response]


def _writing_handlers(routes: ResourceRoutes) -> tuple[Handler, Handler, Handler]:
    """Handlers that create, change and delete a record."""
    kind = routes.kind

    def create(
        request: Request,
        body: RawBody,
        parent: ParentDep,
        principal: PrincipalDep,
        context: AppContextDep,
        new_id: str = _id_of(kind),
    ) -> Response:
        name = check_id(new_id, f"{kind.word}_id") if new_id else ""
        path = f"{record_path(request, routes.path)}/{name}"
        with context.write() as work:
            tx = principal.open(work, parent, "member", verb=routes.permission("create"))
            _demand_above(tx, routes, path)
            record = routes.make(tx, kind, path, Message(body, kind.word))
            (shown,) = routes.show(tx, [record])
        return answer(_operation(kind, shown, "create") if kind.is_slow else shown)

    def patch(
        request: Request,
        body: RawBody,
        parent: ParentDep,
        principal: PrincipalDep,
        context: AppContextDep,
        updateMask: Annotated[str, Query(max_length=1_000)] = "",  # noqa: N803
        allowMissing: Annotated[bool, Query()] = False,  # noqa: N803
    ) -> Response:
        if allowMissing:
            raise InvalidRequest(
                f"allow_missing is not served by this platform; create the {kind.word} first.", field="allow_missing"
            )
        path = record_path(request, routes.template)
        with context.write() as work:
            tx = principal.open(work, parent, "member", verb=routes.permission("update"))
            record = routes.change(tx, kind, path, Message(body, kind.word), updateMask)
            (shown,) = routes.show(tx, [record])
        return answer(_operation(kind, shown, "update") if kind.is_slow else shown)

    def delete(request: Request, parent: ParentDep, principal: PrincipalDep, context: AppContextDep) -> Response:
        path = record_path(request, routes.template)
        with context.write() as work:
            tx = principal.open(work, parent, "member", verb=routes.permission("delete"), deletes=True)
            service.remove(tx, kind, path)
        return answer(deletion_view(parent.name_of(path), is_done=True))

    return create, patch, delete


def _reading_handlers(routes: ResourceRoutes) -> tuple[Handler, Handler]:
    """Handlers that list records and get one of them."""
    kind = routes.kind

    def list_all(
        request: Request, parent: ParentDep, principal: PrincipalDep, context: AppContextDep, query: ListQueryDep
    ) -> Response:
        path = record_path(request, routes.path)
        with context.read() as work:
            tx = principal.open(work, parent, "viewer", verb=routes.permission("list"))
            _demand_above(tx, routes, f"{path}/-")
            records, token = lists.list_records(tx, kind, path, query)
            shown = routes.show(tx, records)
        return answer(page_of(_listed(kind), shown, token))

    def get(request: Request, parent: ParentDep, principal: PrincipalDep, context: AppContextDep) -> Response:
        with context.read() as work:
            tx = principal.open(work, parent, "viewer", verb=routes.permission("get"))
            (shown,) = routes.show(tx, [service.find(tx, kind, record_path(request, routes.template))])
        return answer(shown)

    return list_all, get


def _demand_above(tx: RecordTransaction, routes: ResourceRoutes, path: str) -> None:
    """Raises ``NotFound`` if the parent of ``path``'s collection does not exist."""
    if routes.above is not None:
        service.find(tx, routes.above, path.rsplit("/", 2)[0])


def _listed(kind: RecordKind) -> str:
    """Name of the list in responses, which is not always the collection's."""
    word = camel(kind.word)
    return word if word.endswith("Series") else f"{word}s"


def _operation(kind: RecordKind, shown: dict[str, Any], what: str) -> dict[str, Any]:
    """An operation that is done already."""
    return operation_view(f"{shown['name']}/operations/{what}", response=pack_any(kind.message, **shown))
