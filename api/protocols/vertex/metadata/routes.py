"""Metadata stores: contexts (experiments and their runs), artifacts, executions; and their lineage.

Lineage is the children and members of contexts, and the inputs and outputs of executions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from api.app.unit_of_work import AppContextDep
from api.protocols.kit.json_values import answer, timestamp
from api.protocols.vertex.metadata import runs
from api.protocols.vertex.metadata.runs import ARTIFACT, CONTEXT, EXECUTION, STORE
from api.protocols.vertex.names import PARENT, ParentDep
from api.protocols.vertex.proto import Message
from api.protocols.vertex.records import service
from api.protocols.vertex.records.kinds import RecordKind
from api.protocols.vertex.records.principals import PrincipalDep, RecordTransaction
from api.protocols.vertex.records.routes import ResourceRoutes, add_resource_routes, add_verb, record_path
from api.protocols.vertex.vertex_route import VertexRoute
from core.db.repositories import vertex_records
from core.db.tables import VertexRecord
from core.domain.errors import Conflict, InvalidRequest, NotFound

router = APIRouter(route_class=VertexRoute, include_in_schema=False)

_AT_ONCE: Final = 1_000  # names in one request
GRAPH_LIMIT: Final = 5_000  # members of a context, and inputs and outputs, in one answer
_NESTED: Final = 10  # contexts below each other
_EVENTS: Final = {0: "TYPE_UNSPECIFIED", 1: "INPUT", 2: "OUTPUT"}


def _show_contexts(tx: RecordTransaction, records: list[VertexRecord]) -> list[dict[str, Any]]:
    parents = vertex_records.above(tx.session, records, "child")
    shown = []
    for record in records:
        names = [tx.name_of_record(parent) for parent in parents[record.id]]
        shown.append({**service.view(tx, record), **({"parentContexts": names} if names else {})})
    return shown


def _add_members(tx: RecordTransaction, path: str, message: Message) -> dict[str, Any]:
    """``:addContextArtifactsAndExecutions``."""
    message.refuse_unknown_fields({"context", "artifacts", "executions"})
    context = service.find(tx, CONTEXT, path, locks=True)
    for kind, name in ((ARTIFACT, "artifacts"), (EXECUTION, "executions")):
        for record in _named(tx, kind, message, name):
            vertex_records.link(tx.session, context, record, "member", tx.work.now)
    return {}


def _add_children(tx: RecordTransaction, path: str, message: Message) -> dict[str, Any]:
    """``:addContextChildren``. Raises ``Conflict`` for a cycle."""
    message.refuse_unknown_fields({"context", "childContexts"})
    context = service.find(tx, CONTEXT, path, locks=True)
    children = _named(tx, CONTEXT, message, "childContexts")
    over = _all_above(tx, context)
    for child in children:
        if child.id in over:
            raise Conflict(
                f"{tx.name_of_record(child)} is above {tx.name_of_record(context)} already; it cannot be its child, "
                "too."
            )
        vertex_records.link(tx.session, context, child, "child", tx.work.now)
    return {}


def _remove_children(tx: RecordTransaction, path: str, message: Message) -> dict[str, Any]:
    """``:removeContextChildren``."""
    message.refuse_unknown_fields({"context", "childContexts"})
    context = service.find(tx, CONTEXT, path, locks=True)
    children = _named(tx, CONTEXT, message, "childContexts")
    vertex_records.unlink(tx.session, context, [child.id for child in children], "child")
    return {}


def _add_events(tx: RecordTransaction, path: str, message: Message) -> dict[str, Any]:
    """``:addExecutionEvents``: inputs and outputs of an execution."""
    message.refuse_unknown_fields({"execution", "events"})
    execution = service.find(tx, EXECUTION, path, locks=True)
    for at, item in message.items("events"):
        event = Message(item, at)
        event.refuse_unknown_fields(
            {"artifact", "type", "execution", "eventTime"}, absent={"labels": "labels of events are"}
        )
        kind = event.enum("type", _EVENTS)
        if kind == _EVENTS[0]:
            raise event.fault("type", "is INPUT or OUTPUT.")
        (artifact,) = _find_all(tx, ARTIFACT, [event.text("artifact", 1_000)], event.at("artifact"))
        vertex_records.link(tx.session, execution, artifact, "input" if kind == "INPUT" else "output", tx.work.now)
    return {}


def _of_execution(tx: RecordTransaction, path: str) -> dict[str, Any]:
    """``:queryExecutionInputsAndOutputs``."""
    execution = service.find(tx, EXECUTION, path)
    return _graph(tx, execution, [execution], [])


def _of_context(tx: RecordTransaction, path: str) -> dict[str, Any]:
    """``:queryContextLineageSubgraph``: the artifacts and executions of a context, with the executions' inputs and
    outputs.

    Raises:
        InvalidRequest: the subgraph is too large for one response.
    """
    context = service.find(tx, CONTEXT, path)
    members = vertex_records.members_of(tx.session, context, GRAPH_LIMIT + 1)
    if len(members) > GRAPH_LIMIT:
        raise _too_many(tx, context, "artifacts and executions are in it")
    executions = [record for record in members if record.collection.endswith("/executions")]
    artifacts = [record for record in members if record.collection.endswith("/artifacts")]
    return _graph(tx, context, executions, artifacts)


def _graph(
    tx: RecordTransaction, subject: VertexRecord, executions: Sequence[VertexRecord], artifacts: Sequence[VertexRecord]
) -> dict[str, Any]:
    """The subgraph, in one statement per some hundred executions or artifacts."""
    by_id = {record.id: record for record in executions}
    rows = vertex_records.events_of(tx.session, list(by_id), GRAPH_LIMIT + 1)
    if len(rows) > GRAPH_LIMIT:
        raise _too_many(tx, subject, "inputs and outputs belong to it")
    known = {record.id: record for record in artifacts}
    lacking = list(dict.fromkeys(row.child_id for row in rows if row.child_id not in known))
    known |= vertex_records.records_of(tx.session, lacking)
    order = {execution_id: place for place, execution_id in enumerate(by_id)}
    rows.sort(key=lambda row: (row.kind, order[row.parent_id]))  # inputs first, then in the order of creation
    shown = dict.fromkeys([*(record.id for record in artifacts), *(row.child_id for row in rows)])
    parts = {
        "artifacts": [service.view(tx, known[record]) for record in shown],
        "executions": [service.view(tx, record) for record in executions],
        "events": [
            {
                "artifact": tx.name_of_record(known[row.child_id]),
                "execution": tx.name_of_record(by_id[row.parent_id]),
                "type": row.kind.upper(),
                "eventTime": timestamp(row.created_at),
            }
            for row in rows
        ],
    }
    return {name: part for name, part in parts.items() if part}


def _too_many(tx: RecordTransaction, subject: VertexRecord, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{tx.name_of_record(subject)} is too large for one answer: more than {GRAPH_LIMIT:,} {what}. List its "
        "executions and artifacts in pages, with the filter in_context(…), and ask for the inputs and outputs of each "
        "execution."
    )


def _named(tx: RecordTransaction, kind: RecordKind, message: Message, field: str) -> list[VertexRecord]:
    return _find_all(tx, kind, message.texts(field), message.at(field))


def _find_all(tx: RecordTransaction, kind: RecordKind, names: Sequence[str], where: str) -> list[VertexRecord]:
    """Records by their full names. Raises ``NotFound`` or ``InvalidRequest``."""
    if len(names) > _AT_ONCE:
        raise InvalidRequest(f"{where}: at most {_AT_ONCE:,} names at once.", field=where)
    paths: list[str] = []
    for name in names:
        path = tx.path_of(name)
        if path is None or path.split("/")[0::2] != ["metadataStores", kind.noun]:
            raise InvalidRequest(
                f"{where}: '{name[:300]}' is not the name of one of the {kind.noun} of {tx.parent.name_of()}.",
                field=where,
            )
        paths.append(path)
    records = vertex_records.find_records(tx.session, tx.scope, paths)
    if missing := next((path for path in paths if path not in records), None):
        raise NotFound(f"The {kind.word} {tx.name_of(missing)} is not found.")
    return [records[path] for path in dict.fromkeys(paths)]


def _all_above(tx: RecordTransaction, context: VertexRecord) -> set[str]:
    """Ids of the context and of all its ancestors."""
    ids, level = {context.id}, [context]
    for _ in range(_NESTED):
        parents = vertex_records.above(tx.session, level, "child")
        level = [record for records in parents.values() for record in records if record.id not in ids]
        ids.update(record.id for record in level)
        if not level:
            return ids
    raise Conflict(f"{tx.name_of_record(context)} is nested {_NESTED} contexts deep, which is the limit.")


# --- routes ----------------------------------------------------------------------------------------------------------

_IN_STORE: Final = "metadataStores/{store}"
_CONTEXTS: Final = ResourceRoutes(
    CONTEXT, f"{_IN_STORE}/contexts", STORE, show=_show_contexts, make=runs.create, change=runs.change
)
_EXECUTIONS: Final = ResourceRoutes(EXECUTION, f"{_IN_STORE}/executions", STORE)


def _query(routes: ResourceRoutes, action: str, answer_of: Callable[[RecordTransaction, str], dict[str, Any]]) -> None:
    def query(request: Request, parent: ParentDep, principal: PrincipalDep, context: AppContextDep) -> Response:
        with context.read() as work:
            tx = principal.open(work, parent, "viewer", verb=routes.permission(action))
            return answer(answer_of(tx, record_path(request, routes.template)))

    router.add_api_route(f"{PARENT}/{routes.template}:{action}", query, methods=["GET"], name=f"vertex_{action}")


# Before the routes that refuse all other verbs.
add_verb(
    router,
    _CONTEXTS.template,
    "addContextArtifactsAndExecutions",
    _CONTEXTS.permission("addContextArtifactsAndExecutions"),
    _add_members,
)
for _routes, _action, _apply in (
    (_CONTEXTS, "addContextArtifactsAndExecutions", _add_members),
    (_CONTEXTS, "addContextChildren", _add_children),
    (_CONTEXTS, "removeContextChildren", _remove_children),
    (_EXECUTIONS, "addExecutionEvents", _add_events),
):
    add_verb(router, _routes.template, _action, _routes.permission(_action), _apply)
_query(_CONTEXTS, "queryContextLineageSubgraph", _of_context)
_query(_EXECUTIONS, "queryExecutionInputsAndOutputs", _of_execution)

for _routes in (
    ResourceRoutes(STORE, "metadataStores", make=runs.create_store),
    _CONTEXTS,
    ResourceRoutes(ARTIFACT, f"{_IN_STORE}/artifacts", STORE),
    _EXECUTIONS,
):
    add_resource_routes(router, _routes)
