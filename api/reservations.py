"""Reservations: nodes that an administrator reserves for one project for a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import func, or_, select
from trainmaster.wire.base import Page
from trainmaster.wire.scheduling import ReservationCreate, ReservationView

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Caller, PlatformAdmin, Reader
from api.http.paging import PageParams, make_cursor, read_position
from api.http.routing import new_router
from core.db.repositories.nodes import is_holding, merged_labels
from core.db.repositories.planning import bookings
from core.db.tables import BookingRow, Job, Node, Project, Replica
from core.domain.errors import Conflict, InvalidRequest, NotFound
from core.domain.jobs.states import JobState
from core.ids import new_id
from core.wakeups import TOPIC_TICK

router = new_router("reservations", "/reservations")

_MAX_DURATION: Final = timedelta(days=366)
_CLOCKS_DIFFER: Final = timedelta(minutes=1)
_SHOWN: Final = 5


@router.get("", operation_id="list_reservations", summary="Reservations of nodes for projects")
def list_reservations(caller: Reader, context: AppContextDep, page: PageParams) -> Page[ReservationView]:
    """Current and future reservations, in order of their beginning. Only those of your own projects have names."""
    with context.read() as work:
        rows = list(bookings(work.session, ending_after=work.now))
        if page.cursor is not None:
            after = read_position(page.cursor)
            rows = [row for row in rows if (row.begins_at, row.id) > after]
        shown = rows[: page.limit]
        names = _project_names(work, shown)
        cursor = make_cursor(shown[-1].begins_at.isoformat(), shown[-1].id) if len(rows) > page.limit else None
        return Page(items=[_view(work, caller, row, names) for row in shown], next_cursor=cursor)


@router.post("", operation_id="create_reservation", summary="Reserve nodes for a project", status_code=201)
def create_reservation(body: ReservationCreate, caller: PlatformAdmin, context: AppContextDep) -> ReservationView:
    """From `begins_at` to `ends_at` only this project's jobs may use the nodes; jobs of other projects that run there
    at the beginning are preempted. Until then, jobs that surely end before may start there.
    """
    with context.write() as work:
        return _create(work, caller, body)


@router.delete("/{reservation}", operation_id="delete_reservation", summary="Delete a reservation", status_code=204)
def delete_reservation(reservation: str, caller: PlatformAdmin, context: AppContextDep) -> None:
    with context.write() as work:
        row = work.session.get(BookingRow, reservation) or _named(work, reservation)
        _record_event(work, caller, row, "reservation.deleted", {"id": row.id, "name": row.name})
        work.session.delete(row)


def _create(work: UnitOfWork, caller: Caller, body: ReservationCreate) -> ReservationView:
    """Reserve nodes.

    Raises:
        InvalidRequest: an invalid time window, unknown nodes, or a selector that matches no node.
        Conflict: one of the nodes is already reserved at that time.
    """
    project = _project(work, caller, body.project)
    begins_at = work.now if body.begins_at is None else _utc(body.begins_at, "begins_at")
    ends_at = _utc(body.ends_at, "ends_at")
    _demand_window(begins_at, ends_at, work.now)
    nodes = _nodes(work, body)
    chosen = _chosen(work, nodes, body, begins_at, ends_at)
    row = BookingRow(
        id=new_id("reservation"),
        name=body.name,
        project_id=project.id,
        nodes=sorted(chosen),
        begins_at=begins_at,
        ends_at=ends_at,
        created_by=caller.user_id,
        created_at=work.now,
    )
    work.session.add(row)
    data = {"id": row.id, "name": row.name, "nodes": row.nodes, "begins_at": _iso(begins_at), "ends_at": _iso(ends_at)}
    _record_event(work, caller, row, "reservation.created", data)
    warnings = _warnings(work, row, project, {node.name: node for node in nodes})
    return _view(work, caller, row, {project.id: project.name}, warnings)


def _named(work: UnitOfWork, name: str) -> BookingRow:
    """The only current or future reservation of this name."""
    found = [row for row in bookings(work.session, ending_after=work.now) if row.name == name]
    if not found:
        raise NotFound(f"There is no reservation {name!r}; `trainmaster reservation list` shows them.")
    if len(found) > 1:
        ids = ", ".join(row.id for row in found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise Conflict(f"{len(found)} reservations are named {name!r}; use the id ({ids}).")
    return found[0]


def _record_event(work: UnitOfWork, caller: Caller, row: BookingRow, kind: str, data: Mapping[str, Any]) -> None:
    work.record_event(kind, caller.actor, project_id=row.project_id, data=data)
    work.notify(TOPIC_TICK)


def _project(work: UnitOfWork, caller: Caller, name: str) -> Project:
    try:
        return work.session.get_one(Project, caller.member_of(work.session, name).project_id)
    except NotFound as error:
        raise InvalidRequest(f"project: {error.sentence}", field="project") from error


def _utc(at: datetime, field: str) -> datetime:
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError as error:
        raise InvalidRequest(f"{field}: the time is out of range.", field=field) from error


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


def _demand_window(begins_at: datetime, ends_at: datetime, now: datetime) -> None:
    if begins_at < now - _CLOCKS_DIFFER:
        raise InvalidRequest(f"begins_at: {_iso(begins_at)} is in the past; omit it to begin now.", field="begins_at")
    if ends_at <= begins_at:
        raise InvalidRequest(
            f"ends_at: {_iso(ends_at)} is not after the beginning, {_iso(begins_at)}.", field="ends_at"
        )
    if ends_at - begins_at > _MAX_DURATION:
        raise InvalidRequest(
            f"ends_at: a reservation is for at most {_MAX_DURATION.days} days; for longer give the project a "
            "guarantee.",
            field="ends_at",
        )


def _nodes(work: UnitOfWork, body: ReservationCreate) -> list[Node]:
    """The nodes that are named, or those that match the selector; in order of name."""
    if bool(body.nodes) == bool(body.node_selector):
        raise InvalidRequest("nodes: state either nodes or node_selector, not both.", field="nodes")
    every = list(work.session.scalars(select(Node).order_by(Node.name)))
    if body.nodes:
        known = {node.name for node in every}
        unknown = [name for name in dict.fromkeys(body.nodes) if name not in known]
        if unknown:
            raise InvalidRequest(
                f"nodes: there {'is' if len(unknown) == 1 else 'are'} no {_few(unknown)}; `trainmaster nodes` lists "
                "them.",
                field="nodes",
            )
        return [node for node in every if node.name in body.nodes]
    wanted = body.node_selector.items()
    found = [node for node in every if wanted <= merged_labels(node.labels, node.admin_labels).items()]
    if not found:
        labels = " and ".join(f"{key}={value}" for key, value in sorted(wanted))
        raise InvalidRequest(f"node_selector: no node has the labels {labels}.", field="node_selector")
    return found


def _chosen(
    work: UnitOfWork, nodes: Sequence[Node], body: ReservationCreate, begins_at: datetime, ends_at: datetime
) -> list[str]:
    """The names of the nodes to reserve. With a count: of the nodes that are not reserved, the least used first."""
    taken = {
        name: row
        for row in bookings(work.session, ending_after=begins_at)
        if row.begins_at < ends_at
        for name in row.nodes
    }
    if body.count is None:
        for node in nodes:
            if node.name in taken:
                raise _overlap(node.name, taken[node.name])
        return [node.name for node in nodes]
    if body.count > len(nodes):
        match = "node matches" if len(nodes) == 1 else "nodes match"
        raise InvalidRequest(f"count: only {len(nodes)} {match}, but {body.count} are requested.", field="count")
    free = [node for node in nodes if node.name not in taken]
    if body.count > len(free):
        raise Conflict(
            f"Only {len(free)} of these {len(nodes)} nodes are not reserved then, but {body.count} are requested.",
            field="count",
        )
    busy: dict[str, int] = {}
    for name in work.session.scalars(select(Replica.node).where(is_holding())):
        busy[name] = busy.get(name, 0) + 1
    return [node.name for node in sorted(free, key=lambda node: (busy.get(node.name, 0), node.name))[: body.count]]


def _overlap(node: str, row: BookingRow) -> Conflict:
    return Conflict(
        f"Node {node} is already reserved from {_iso(row.begins_at)} to {_iso(row.ends_at)}, by {row.name} ({row.id}); "
        "choose another time or other nodes, or delete that reservation first.",
        field="nodes",
    )


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    noun = "node" if len(names) == 1 else "nodes"
    return f"{noun} {shown}" + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _closed(node: Node) -> str:
    """Why the node takes no new jobs; empty if it does."""
    if not node.is_ready:
        return "not ready"
    if node.is_cordoned:
        return "cordoned"
    return "quarantined" if node.quarantined_at is not None else ""


def _warnings(work: UnitOfWork, row: BookingRow, project: Project, nodes: Mapping[str, Node]) -> list[str]:
    shut = [(name, how) for name in row.nodes if (how := _closed(nodes[name]))]
    found = [f"{name} is {how} now." for name, how in shut[:_SHOWN]]
    if len(shut) > _SHOWN:
        found.append(f"{len(shut) - _SHOWN} more of the nodes are cordoned, quarantined or not ready now.")
    ahead_s = max(0.0, (row.begins_at - work.now).total_seconds())
    others = (
        select(Job.name, Job.spec["preemptible"].as_boolean().label("preemptible"))
        .join(Replica, Replica.job_id == Job.id)
        .where(
            is_holding(),
            Replica.node.in_(row.nodes),
            Job.project_id != project.id,
            # Other jobs will have ended by then, even if they began just now.
            or_(Job.max_run_time_s.is_(None), Job.max_run_time_s > ahead_s),
        )
        .distinct()
        .order_by(Job.name)
    )
    names = [job.name for job in work.session.execute(others) if job.preemptible is not False]
    if names:
        shown = ", ".join(names[:_SHOWN])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        found.append(f"Jobs of other projects that run there may be stopped when it begins: {shown}{more}.")
    return found + _start_restriction(work, project, ahead_s)


def _start_restriction(work: UnitOfWork, project: Project, ahead_s: float) -> list[str]:
    """The warning that, from now on, jobs that may still run at the beginning do not start on the nodes."""
    if not ahead_s:
        return []
    unlimited = select(func.count()).where(
        Job.state == JobState.QUEUED.value,
        Job.deleted_at.is_(None),
        Job.project_id != project.id,
        Job.max_run_time_s.is_(None),
    )
    count = work.session.execute(unlimited).scalar_one()
    waiting = f"; {count} waiting {'job has' if count == 1 else 'jobs have'} none" if count else ""
    return [f"Until it begins, jobs of other projects start there only if their max_run_time ends by then{waiting}."]


def _project_names(work: UnitOfWork, rows: Sequence[BookingRow]) -> dict[str, str]:
    ids = list({row.project_id for row in rows})
    rows_of = work.session.execute(select(Project.id, Project.name).where(Project.id.in_(ids)))
    return dict(rows_of.all())


def _view(
    work: UnitOfWork, caller: Caller, row: BookingRow, names: Mapping[str, str], warnings: Sequence[str] = ()
) -> ReservationView:
    is_known = caller.is_admin or row.project_id in caller.projects
    return ReservationView(
        id=row.id,
        name=row.name if is_known else None,
        project=names.get(row.project_id) if is_known else None,
        nodes=[str(node) for node in row.nodes],
        begins_at=row.begins_at,
        ends_at=row.ends_at,
        is_active=row.begins_at <= work.now < row.ends_at,
        warnings=list(warnings),
    )
