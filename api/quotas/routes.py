"""Quotas of projects: settings, current usage, changes, and warnings about probable mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import select
from trainmaster.spec.errors import FieldError
from trainmaster.spec.priorities import read_priority
from trainmaster.wire.base import Page
from trainmaster.wire.scheduling import QuotaLineView, QuotaUpdate, QuotaUserView, QuotaView, StorageView

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Caller, PlatformAdmin, ProjectAccess, ProjectViewer, Reader
from api.http.paging import PageParams, rows_by_name
from api.http.routing import new_router
from api.quotas.amounts import capacity, in_words, merged, models_of, shown
from core.db.repositories.planning import read_policy
from core.db.repositories.queue import allocated_by_user
from core.db.repositories.storage_usage import StorageDetails, read_details, request_measurement
from core.db.tables import Project, User
from core.domain.errors import InvalidRequest, combined_error
from core.domain.sharing.policy import Policy
from core.domain.sharing.quota import (
    CPU,
    GPUS,
    JOBS,
    MEMORY,
    STORAGE,
    Quota,
    QuotaSettings,
    keys_in,
    parse_quota,
    written_name,
)
from core.wakeups import TOPIC_TICK

router = new_router("quotas")

_PARTS: Final = ("limit", "guaranteed", "user_limit")
_ALWAYS: Final = (GPUS, CPU, MEMORY, JOBS)  # in this order, with the GPU models after the GPUs
_T = TypeVar("_T")


@router.get("/quotas", operation_id="list_quotas", summary="Quotas of the caller's projects")
def list_quotas(caller: Reader, context: AppContextDep, page: PageParams) -> Page[QuotaView]:
    """In order of name, with current usage. A platform admin sees all projects."""
    query = select(Project).where(Project.deleted_at.is_(None))
    if not caller.is_admin:
        query = query.where(Project.id.in_(list(caller.projects)))
    with context.read() as work:
        rows, cursor = rows_by_name(work.session, query, Project.name, page)
        quota_context = _QuotaContext.of(work, [project.id for project, _ in rows])
        return Page(items=[_view_of(project, quota_context) for project, _ in rows], next_cursor=cursor)


@router.get("/projects/{project}/quota", operation_id="get_quota", summary="A project's quota and usage")
def get_quota(project: ProjectViewer, context: AppContextDep) -> QuotaView:
    """Limits, guarantees and current usage of the project and of its users."""
    with context.read() as work:
        return _view(work, project.load(work.session))


@router.patch("/projects/{project}/quota", operation_id="update_quota", summary="Set a project's quota")
def update_quota(project: str, body: QuotaUpdate, caller: PlatformAdmin, context: AppContextDep) -> QuotaView:
    """Amounts that are not named stay. Running jobs continue; `warnings` lists probable mistakes."""
    with context.write() as work:
        return _change(work, caller, ProjectAccess(caller, project, "viewer").load(work.session), body)


def _view(work: UnitOfWork, project: Project) -> QuotaView:
    return _view_of(project, _QuotaContext.of(work, [project.id]))


def _change(work: UnitOfWork, caller: Caller, project: Project, body: QuotaUpdate) -> QuotaView:
    """Set what ``body`` names.

    Raises:
        InvalidRequest: the quota would be invalid; nothing is changed.
    """
    before = dict(project.quota or {})
    models = models_of(capacity(work.session))
    wrong: list[InvalidRequest] = []
    after: dict[str, Any] = {
        part: merged(before.get(part) or {}, getattr(body, part), models, at=part, wrong=wrong) for part in _PARTS
    }
    for part, of_users in (("users", body.users), ("user_guaranteed", body.user_guaranteed)):
        wrong += _not_there(work, of_users, at=part)
        after[part] = _of_users(dict(before.get(part) or {}), of_users, models, at=part, wrong=wrong)
    weights = {**(before.get("user_weights") or {}), **body.user_weights}
    after["user_weights"] = {user: weight for user, weight in weights.items() if weight is not None}
    wrong += _not_there(work, body.user_weights, at="user_weights")
    quota = {name: value for name, value in after.items() if value}
    max_priority = _unless_wrong(_priority, body.max_priority, wrong)
    if not wrong:
        _unless_wrong(parse_quota, quota, wrong)
    if wrong:
        raise combined_error(wrong, "parts of the quota")
    given = body.model_fields_set
    if "weight" in given and body.weight is not None:
        project.weight = body.weight
    if "max_priority" in given:
        project.max_priority = max_priority
    project.quota = quota
    data = body.model_dump(mode="json", exclude_unset=True)
    work.record_event("project.quota_set", caller.actor, project_id=project.id, data=data)
    work.notify(TOPIC_TICK)
    if written_name(STORAGE) in body.limit:
        request_measurement(work.session, project.id, work.now)  # which tells running jobs of a crossing
    work.session.flush()
    return _view(work, project)


def _of_users(
    before: dict[str, Any],
    changes: Mapping[str, Mapping[str, Any] | None],
    models: list[str],
    *,
    at: str,
    wrong: list[InvalidRequest],
) -> dict[str, Any]:
    for user, limits in changes.items():
        if limits is None:
            before.pop(user, None)
            continue
        after = merged(before.get(user) or {}, limits, models, at=f"{at}.{user}", wrong=wrong)
        if after:
            before[user] = after
        else:
            before.pop(user, None)
    return before


def _not_there(work: UnitOfWork, names: Mapping[str, Any], *, at: str) -> list[InvalidRequest]:
    given = [name for name, value in names.items() if value is not None]
    known = set(work.session.scalars(select(User.name).where(User.name.in_(given)))) if given else set()
    return [
        InvalidRequest(f"{at}.{name}: there is no user {name!r}.", field=f"{at}.{name}")
        for name in given
        if name not in known
    ]


def _unless_wrong(read: Callable[[Any], _T], value: Any, wrong: list[InvalidRequest]) -> _T | None:
    try:
        return read(value)
    except InvalidRequest as mistake:
        wrong.append(mistake)
        return None


def _priority(value: Any) -> int | None:
    if value is None:
        return None
    try:
        return read_priority(value)
    except FieldError as wrong:
        raise InvalidRequest(f"max_priority: {wrong}.", field="max_priority") from wrong


@dataclass(frozen=True, slots=True)
class _QuotaContext:
    """The data for the views of several projects, read once. ``used_by_user``: by project id and user name.
    ``storage``: by project id.
    """

    capacity: Mapping[str, int]
    policy: Policy
    quotas: Mapping[str, QuotaSettings]
    wrong: Mapping[str, str]
    used_by_user: Mapping[str, Mapping[str, Mapping[str, int]]]
    storage: Mapping[str, StorageDetails]

    @classmethod
    def of(cls, work: UnitOfWork, project_ids: Sequence[str]) -> _QuotaContext:
        """Load the data for the views of these projects."""
        rows = work.session.execute(select(Project.id, Project.quota).where(Project.deleted_at.is_(None)))
        quotas: dict[str, QuotaSettings] = {}
        wrong: dict[str, str] = {}
        for project_id, quota in rows:
            try:
                quotas[project_id] = parse_quota(quota or {})
            except InvalidRequest as mistake:  # another version wrote it
                wrong[project_id] = mistake.sentence
        by_id = allocated_by_user(work.session, project_ids=project_ids)
        ids = {user_id for of_users in by_id.values() for user_id in of_users}
        names = dict(work.session.execute(select(User.id, User.name).where(User.id.in_(ids))).all())
        used_by_user = {
            project_id: {names[user_id]: amounts for user_id, amounts in of_users.items()}
            for project_id, of_users in by_id.items()
        }
        storage = read_details(work.session, project_ids)
        return cls(capacity(work.session), read_policy(work.session).policy, quotas, wrong, used_by_user, storage)


def _view_of(project: Project, quota_context: _QuotaContext) -> QuotaView:
    settings = quota_context.quotas.get(project.id, QuotaSettings())
    quota = settings.quota
    others = [other.quota for project_id, other in quota_context.quotas.items() if project_id != project.id]
    by_user = quota_context.used_by_user.get(project.id, {})
    used = _total(by_user.values())
    storage = quota_context.storage[project.id]
    unreadable = []
    if project.id in quota_context.wrong:
        unreadable.append(
            "This version cannot read the stored quota, so it has no effect: "
            f"{quota_context.wrong[project.id]} Remove that part, or set it again."
        )
    return QuotaView(
        project=project.name,
        weight=project.weight,
        max_priority=project.max_priority,
        lines=[
            *(_line(key, quota, used, quota_context.capacity) for key in _keys(quota, used, quota_context.capacity)),
            QuotaLineView(what=written_name(STORAGE), used=storage.state.used_bytes, limit=storage.state.limit_bytes),
        ],
        users=_users(settings, by_user),
        storage=_storage_view(storage),
        warnings=[
            *unreadable,
            *_storage_warnings(storage),
            *_warnings(project.name, quota, others, quota_context.capacity, quota_context.policy),
        ],
    )


def _storage_warnings(storage: StorageDetails) -> list[str]:
    found = list(storage.state.warnings())
    if storage.unreadable:
        folders = "1 folder is" if storage.unreadable == 1 else f"{storage.unreadable} folders are"
        found.append(f"{folders} not counted, as the platform's user may not read them.")
    return [f"{written_name(STORAGE)}: {sentence}" for sentence in found]


def _storage_view(storage: StorageDetails) -> StorageView:
    state = storage.state
    return StorageView(
        used=state.used_bytes,
        limit=state.limit_bytes,
        percent=None if state.limit_bytes is None else round(state.percent(), 1),
        parts=dict(storage.parts),
        measured_at=state.measured_at,
        unreadable_folders=storage.unreadable,
    )


def _total(usages: Iterable[Mapping[str, int]]) -> dict[str, int]:
    whole: dict[str, int] = {}
    for amounts in usages:
        for key, amount in amounts.items():
            whole[key] = whole.get(key, 0) + amount
    return whole


def _keys(quota: Quota, used: Mapping[str, int], capacity: Mapping[str, int]) -> list[str]:
    models = sorted(key for key in {*keys_in(quota), *used, *capacity} if "/" in key)
    first, *rest = _ALWAYS
    return [first, *models, *rest]


def _line(key: str, quota: Quota, used: Mapping[str, int], capacity: Mapping[str, int]) -> QuotaLineView:
    def of(part: Mapping[str, int]) -> float | None:
        return shown(key, part[key]) if key in part else None

    return QuotaLineView(
        what=written_name(key),
        used=shown(key, used.get(key, 0)),
        limit=of(quota.limit),
        guaranteed=of(quota.guaranteed),
        user_limit=of(quota.user_limit),
        capacity=None if key == JOBS else shown(key, capacity.get(key, 0)),
    )


def _users(settings: QuotaSettings, by_user: Mapping[str, Mapping[str, int]]) -> list[QuotaUserView]:
    limits, guaranteed = settings.quota.user_limits, settings.quota.user_guaranteed
    names = sorted({*by_user, *limits, *guaranteed, *settings.user_weights})
    return [
        QuotaUserView(
            user=name,
            used={written_name(key): shown(key, amount) for key, amount in by_user.get(name, {}).items() if amount},
            limit={written_name(key): shown(key, amount) for key, amount in limits.get(name, {}).items()},
            guaranteed={written_name(key): shown(key, amount) for key, amount in guaranteed.get(name, {}).items()},
            weight=settings.user_weights.get(name, 1.0),
        )
        for name in names
    ]


def _warnings(
    project: str, quota: Quota, others: Iterable[Quota], capacity: Mapping[str, int], policy: Policy
) -> list[str]:
    """One sentence each. ``others``: the quotas of all other projects."""
    return [
        *_unknown_models(quota, capacity),
        *_beyond_the_cluster(project, quota, list(others), capacity),
        *_user_limits_above(quota),
        *_user_guarantees_above(project, quota),
        *_without_effect(quota, capacity, policy),
    ]


def _unknown_models(quota: Quota, capacity: Mapping[str, int]) -> list[str]:
    known = models_of(capacity)
    present = f"the nodes have {', '.join(known)}" if known else "the nodes have no GPUs at all"
    return [
        f"No node has the GPU model {model}; {present}." for model in models_of(keys_in(quota)) if model not in known
    ]


def _beyond_the_cluster(project: str, quota: Quota, others: list[Quota], capacity: Mapping[str, int]) -> list[str]:
    found = []
    for key, amount in quota.guaranteed.items():
        has = capacity.get(key, 0)
        if has == 0 and "/" in key:
            continue  # a model that no node has: already in another warning
        name = written_name(key)
        if amount > has:
            found.append(
                f"{name}: {in_words(key, amount)} are guaranteed to {project}, but all nodes together have "
                f"{in_words(key, has)}."
            )
            continue
        combined_error = amount + sum(other.guaranteed.get(key, 0) for other in others)
        if combined_error > has:
            found.append(
                f"{name}: the guarantees of all projects add up to {in_words(key, combined_error)}, but the nodes have "
                f"{in_words(key, has)}; they cannot all be met at once."
            )
    return found


def _user_limits_above(quota: Quota) -> list[str]:
    limits = [("each user", quota.user_limit), *sorted(quota.user_limits.items())]
    return [
        f"{written_name(key)}: {holder} may use {in_words(key, amount)}, but the whole project only "
        f"{in_words(key, quota.limit[key])}; the smaller limit applies."
        for holder, limit in limits
        for key, amount in limit.items()
        if amount > quota.limit.get(key, amount)
    ]


def _user_guarantees_above(project: str, quota: Quota) -> list[str]:
    """Users' guarantees are met within their project: other projects give back no more than the project's guarantee."""
    combined_error: dict[str, int] = {}
    for of_user in quota.user_guaranteed.values():
        for key, amount in of_user.items():
            combined_error[key] = combined_error.get(key, 0) + amount
    return [
        f"{written_name(key)}: the guarantees of {project}'s users add up to {in_words(key, amount)}, but the project "
        f"is guaranteed {in_words(key, quota.guaranteed[key]) if key in quota.guaranteed else 'nothing'}; beyond that "
        "they reclaim only from other users of the project."
        for key, amount in sorted(combined_error.items())
        if amount > quota.guaranteed.get(key, 0)
    ]


def _without_effect(quota: Quota, capacity: Mapping[str, int], policy: Policy) -> list[str]:
    found = [
        f"{written_name(key)}: the limit of {in_words(key, amount)} is above the capacity of all nodes "
        f"({in_words(key, capacity[key])}) and has no effect."
        for key, amount in quota.limit.items()
        if key != JOBS and amount > capacity.get(key, amount)
    ]
    found += [
        f"{written_name(key)}: with a limit of 0 no job {'with GPUs ' if key.startswith(GPUS) else ''}of this project "
        "can start."
        for key, amount in quota.limit.items()
        if amount == 0
    ]
    if (quota.guaranteed or quota.user_guaranteed) and not policy.reclaims:
        found.append(
            "Guaranteed resources are not reclaimed from borrowers, as the policy's setting `reclaims` is off."
        )
    return found
