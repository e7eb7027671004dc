"""Shares of the cluster: current usage, past usage, and the fair share by weight, of projects and users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import select
from trainmaster.wire.scheduling import SharesView, ShareView, UserShareView

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.quotas.amounts import capacity, models_of, shown
from core.db.repositories.planning import read_policy, read_usage
from core.db.repositories.queue import demand_by_project, held_by_user
from core.db.tables import Project, User
from core.domain.sharing.gpu_models import accepted_models
from core.domain.sharing.quota import CPU, GPUS, JOBS, MEMORY
from core.domain.sharing.resources import Gang
from core.domain.sharing.usage import ShareClaim, entitlements

_DOMINANT_KEYS = (CPU, MEMORY)


@dataclass(slots=True)
class _Demand:
    """What a project or a user uses and requests, by the keys of quotas."""

    held: dict[str, int] = field(default_factory=dict)
    requested: dict[str, int] = field(default_factory=dict)
    running: int = 0
    waiting: int = 0

    def wanted(self) -> dict[str, int]:
        return {key: self.held.get(key, 0) + self.requested.get(key, 0) for key in {*self.held, *self.requested}}


def view(work: UnitOfWork, caller: Caller) -> SharesView:
    """All projects with usage, demand or past usage; those that the caller may not see are combined into one item."""
    has = capacity(work.session)
    parts = _demands(work, has)
    projects = {row.id: row for row in work.session.scalars(select(Project).where(Project.deleted_at.is_(None)))}
    users = dict(work.session.execute(select(User.id, User.name)).all())
    policy = read_policy(work.session).policy
    past = {key: usage.value_at(work.now, policy.usage_half_life_s) for key, usage in read_usage(work.session).items()}
    weights = {project_id: projects[project_id].weight if project_id in projects else 1.0 for project_id in parts}
    wholes = {project_id: _whole(of_users.values()) for project_id, of_users in parts.items()}
    claims = {
        project_id: ShareClaim(weights[project_id], min(1.0, _dominant(whole.wanted(), has)))
        for project_id, whole in wholes.items()
    }
    due = entitlements(claims)
    known: list[ShareView] = []
    others: list[ShareView] = []
    for project_id, whole in wholes.items():
        is_known = project_id in projects and (caller.is_admin or project_id in caller.projects)
        share = ShareView(
            project=projects[project_id].name if is_known else None,
            weight=weights[project_id],
            allocated=_dominant(whole.held, has),
            wanted=claims[project_id].wanted,
            entitlement=due[project_id],
            usage=past.get((project_id, "")),
            gpus=_gpus(whole.held),
            cpus=shown(CPU, whole.held.get(CPU, 0)),
            memory_bytes=whole.held.get(MEMORY, 0),
            running=whole.running,
            waiting=whole.waiting,
            users=[
                UserShareView(
                    user=users.get(user_id, "?"),
                    allocated=_dominant(part.held, has),
                    usage=past.get((project_id, user_id), 0.0),
                    running=part.running,
                    waiting=part.waiting,
                )
                for user_id, part in sorted(parts[project_id].items(), key=lambda item: users.get(item[0], ""))
            ]
            if is_known
            else [],
        )
        (known if is_known else others).append(share)
    known.sort(key=lambda share: share.project or "")
    return SharesView(
        projects=[*known, *_combined(others)],
        gpus={model: shown(GPUS, has[f"{GPUS}/{model}"]) for model in models_of(has)},
        cpu_milli=has[CPU],
        memory_bytes=has[MEMORY],
    )


def _demands(work: UnitOfWork, has: Mapping[str, int]) -> dict[str, dict[str, _Demand]]:
    found: dict[str, dict[str, _Demand]] = {}
    for project_id, of_users in held_by_user(work.session).items():
        for user_id, amounts in of_users.items():
            found.setdefault(project_id, {})[user_id] = _Demand(dict(amounts), running=amounts[JOBS])
    models = models_of(has)
    for (project_id, user_id), (count, gangs) in demand_by_project(work.session).items():
        part = found.setdefault(project_id, {}).setdefault(user_id, _Demand())
        part.waiting += count
        for gang, times in gangs:
            _add(part.requested, _demand_of(gang, models, has), times)
    for project_id, user_id in read_usage(work.session):
        of_project = found.setdefault(project_id, {})
        if user_id:
            of_project.setdefault(user_id, _Demand())
    return found


def _add(held: dict[str, int], amounts: Mapping[str, int], times: int = 1) -> None:
    for key, amount in amounts.items():
        held[key] = held.get(key, 0) + times * amount


def _whole(parts: Iterable[_Demand]) -> _Demand:
    whole = _Demand()
    for part in parts:
        whole.running += part.running
        whole.waiting += part.waiting
        _add(whole.held, part.held)
        _add(whole.requested, part.requested)
    return whole


def _demand_of(gang: Gang, models: list[str], has: Mapping[str, int]) -> dict[str, int]:
    """What the gang requests; if it accepts several GPU models, the most frequent one counts."""
    requested = {CPU: 0, MEMORY: 0, JOBS: 1}
    for role in gang.roles:
        requested[CPU] += role.replicas * role.request.cpu_milli
        requested[MEMORY] += role.replicas * role.request.memory_bytes
        milli = role.replicas * (1000 * role.request.gpu_count + role.request.gpu_milli)
        if not milli:
            continue
        requested[GPUS] = requested.get(GPUS, 0) + milli
        fitting = accepted_models(role.request.gpu_models, models) if role.request.gpu_models else tuple(models)
        if fitting:
            model = max(fitting, key=lambda each: has[f"{GPUS}/{each}"])
            requested[f"{GPUS}/{model}"] = requested.get(f"{GPUS}/{model}", 0) + milli
    return requested


def _dominant(held: Mapping[str, int], has: Mapping[str, int]) -> float:
    """The dominant share (DRF): the largest fraction used of CPU, memory, or a GPU model."""
    keys = [key for key in held if key in _DOMINANT_KEYS or "/" in key]
    return max((held[key] / has[key] for key in keys if has.get(key)), default=0.0)


def _gpus(held: Mapping[str, int]) -> dict[str, float]:
    return {key.partition("/")[2]: shown(key, amount) for key, amount in sorted(held.items()) if "/" in key and amount}


def _combined(others: list[ShareView]) -> list[ShareView]:
    if not others:
        return []
    gpus: dict[str, float] = {}
    for share in others:
        for model, count in share.gpus.items():
            gpus[model] = gpus.get(model, 0) + count
    return [
        ShareView(
            project=None,
            weight=sum(share.weight for share in others),
            allocated=min(1.0, sum(share.allocated for share in others)),
            wanted=min(1.0, sum(share.wanted for share in others)),
            entitlement=min(1.0, sum(share.entitlement for share in others)),
            usage=min(1.0, sum(share.usage or 0.0 for share in others)),
            gpus=gpus,
            cpus=sum(share.cpus for share in others),
            memory_bytes=sum(share.memory_bytes for share in others),
            running=sum(share.running for share in others),
            waiting=sum(share.waiting for share in others),
        )
    ]
