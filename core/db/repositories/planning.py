"""Planner settings of administrators (policy, bookings), start forecasts, the recent usage of projects, wait reasons.

Why jobs wait is a row for each shape of gang, and one for a project's user if theirs differs: reasons of quotas and
shares are equal for all jobs of one shape of one user in one project, and are stored under that key; the row of a shape
alone applies to all submitters of such a gang.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, Label, Table, and_, bindparam, delete, func, insert, select, true, update
from sqlalchemy.orm import Session, aliased

from core.db.engine import UntypedSelect
from core.db.tables import BookingRow, Job, PolicyRow, Project, StartForecastRow, Usage, WaitReason
from core.domain.errors import StaleWrite
from core.domain.sharing.policy import Policy, parse_policy, readable_policy
from core.domain.sharing.usage import DecayedUsage

_NAME: Final = "policy"
_CHUNK: Final = 500

_usage: Final = cast("Table", Usage.__table__)
_same_user: Final = and_(_usage.c.project_id == bindparam("of_project"), _usage.c.user_id == bindparam("of_user"))
_DROP_USAGE: Final = delete(_usage).where(_same_user)
_CHANGE_USAGE: Final = update(_usage).where(_same_user)
_ADD_USAGE: Final = insert(_usage).values(project_id=bindparam("of_project"), user_id=bindparam("of_user"))


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """``generation`` 0: defaults, never changed. ``wrong``: setting -> why this version cannot read it; those are as by
    default. ``settings``: as stored.
    """

    policy: Policy
    settings: Mapping[str, Any]
    generation: int = 0
    updated_at: datetime | None = None
    updated_by: str = ""
    wrong: Mapping[str, str] = field(default_factory=dict)


def read_policy(session: Session) -> StoredPolicy:
    """The current settings. Settings that another version wrote and this one cannot read fall back to defaults and are
    listed in ``wrong``.
    """
    row = session.get(PolicyRow, _NAME)
    if row is None:
        return StoredPolicy(Policy(), {})
    settings: Any = row.settings
    if not isinstance(settings, Mapping):
        wrong = {"": "The stored value is no object of settings."}
        return StoredPolicy(Policy(), {}, row.generation, row.updated_at, row.updated_by, wrong)
    policy, wrong = readable_policy(settings)
    return StoredPolicy(policy, settings, row.generation, row.updated_at, row.updated_by, wrong)


def write_policy(
    session: Session, settings: Mapping[str, Any], *, previous: StoredPolicy, by: str, now: datetime
) -> StoredPolicy:
    """Replace the policy ``previous`` by ``settings``, which lists all differences from the defaults.

    Raises:
        InvalidRequest: they are no policy.
        StaleWrite: another user has changed them since.
    """
    policy = parse_policy(settings)
    values = {"settings": dict(settings), "generation": previous.generation + 1, "updated_at": now, "updated_by": by}
    if previous.generation:
        done = session.execute(
            update(PolicyRow)
            .where(PolicyRow.name == _NAME, PolicyRow.generation == previous.generation)
            .values(**values)
        )
        if done.rowcount != 1:  # type: ignore[attr-defined]
            raise StaleWrite("the policy has been changed since it was read")
    else:
        if session.get(PolicyRow, _NAME) is not None:
            raise StaleWrite("the policy has been changed since it was read")
        session.execute(insert(PolicyRow).values(name=_NAME, **values))
    return StoredPolicy(policy, dict(settings), previous.generation + 1, now, by)


def bookings(session: Session, *, ending_after: datetime | None = None) -> Sequence[BookingRow]:
    """Bookings in order of their beginning; without ``ending_after`` past ones too. Bookings of deleted projects are
    left out, because no user could use the nodes.
    """
    query = (
        select(BookingRow)
        .join(Project, Project.id == BookingRow.project_id)
        .where(Project.deleted_at.is_(None))
        .order_by(BookingRow.begins_at, BookingRow.id)
    )
    if ending_after is not None:
        query = query.where(BookingRow.ends_at > ending_after)
    return session.scalars(query).all()


@dataclass(frozen=True, slots=True)
class ForecastEntry:
    """``position``: from 1. Times are ``None`` where no estimate exists; ``code`` and ``sentence`` say why."""

    job_id: str
    position: int
    earliest: datetime | None = None
    likely: datetime | None = None
    latest: datetime | None = None
    code: str = "expected"
    sentence: str = ""
    nodes: tuple[str, ...] = ()
    promise: Mapping[str, Any] | None = None


def read_promises(session: Session) -> dict[str, Mapping[str, Any]]:
    """What waiting jobs were promised, by job."""
    rows = session.execute(
        select(StartForecastRow.job_id, StartForecastRow.promise).where(StartForecastRow.promise.is_not(None))
    )
    return {row.job_id: row.promise for row in rows if row.promise is not None}


def write_start_forecasts(session: Session, forecasts: Iterable[ForecastEntry], now: datetime) -> None:
    """Replace all start forecasts; those of deleted jobs are left out.

    Raises:
        IntegrityError: another process replaces them at the same time, or a job was deleted meanwhile.
    """
    session.execute(delete(StartForecastRow))
    forecasts = list(forecasts)
    there: set[str] = set()
    for begin in range(0, len(forecasts), _CHUNK):
        ids = [forecast.job_id for forecast in forecasts[begin : begin + _CHUNK]]
        there |= set(session.scalars(select(Job.id).where(Job.id.in_(ids))))
    rows = [
        {
            "job_id": forecast.job_id,
            "position": forecast.position,
            "earliest": forecast.earliest,
            "likely": forecast.likely,
            "latest": forecast.latest,
            "code": forecast.code,
            "sentence": forecast.sentence,
            "nodes": list(forecast.nodes),
            "promise": forecast.promise,
            "at": now,
        }
        for forecast in forecasts
        if forecast.job_id in there
    ]
    for begin in range(0, len(rows), _CHUNK):
        session.execute(insert(StartForecastRow), rows[begin : begin + _CHUNK])


UsageKey = tuple[str, str]  # project's id; user's id, or empty for the project as a whole


def read_usage(session: Session) -> dict[UsageKey, DecayedUsage]:
    rows = session.execute(select(Usage.project_id, Usage.user_id, Usage.value, Usage.share, Usage.at))
    return {(row.project_id, row.user_id): DecayedUsage(row.value, row.share, row.at) for row in rows}


def write_usage(session: Session, usages: Mapping[UsageKey, DecayedUsage], *, known: Container[UsageKey]) -> None:
    """Replace the usage of these keys; zero usage is deleted.

    Args:
        known: keys that have rows. There are no other writers: the caller holds the tick's lease.
    """
    rows: dict[str, list[dict[str, Any]]] = {"gone": [], "old": [], "new": []}
    for (project_id, user_id), usage in usages.items():
        is_known = (project_id, user_id) in known
        key = {"of_project": project_id, "of_user": user_id}
        if usage.is_zero:
            rows["gone"] += [key] if is_known else []
        else:
            values = {"value": usage.value, "share": usage.share, "at": usage.at}
            rows["old" if is_known else "new"].append({**key, **values})
    statements = {"gone": _DROP_USAGE, "old": _CHANGE_USAGE, "new": _ADD_USAGE}
    for kind, changed in rows.items():
        if changed:
            session.connection().execute(statements[kind], changed)


_OfUser: Final = aliased(WaitReason)


def user_shape_key(shape: str, project_id: str, user_id: str) -> str:
    """The key in ``wait_reasons.shape`` for one user's jobs of this shape in this project."""
    return f"{shape}/{project_id}/{user_id}"


def reason_columns() -> tuple[Label[Any], ...]:
    """``shape_code``, ``shape_sentence`` and ``shape_numbers`` of a query that :func:`with_reasons` has joined."""
    return (
        func.coalesce(_OfUser.code, WaitReason.code).label("shape_code"),
        func.coalesce(_OfUser.sentence, WaitReason.sentence).label("shape_sentence"),
        func.coalesce(_OfUser.numbers, WaitReason.numbers).label("shape_numbers"),
    )


def with_reasons(query: UntypedSelect, where: ColumnElement[bool] | None = None) -> UntypedSelect:
    """``query`` of jobs joined with the wait reason of each job's shape, if known. ``where``: only for these jobs."""
    only = true() if where is None else where
    of_user = Job.shape + "/" + Job.project_id + "/" + Job.user_id
    return query.join(WaitReason, and_(WaitReason.shape == Job.shape, only), isouter=True).join(
        _OfUser, and_(_OfUser.shape == of_user, only), isouter=True
    )
