"""Quotas: hard limits and guarantees per project, per user within a project, and per GPU model.

Amounts held at the same moment count. A job is never split at a GPU model's limit: if it could use a limited model
only in part, it is placed on its other models as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from core.domain.sharing.gpus import accepted_models, accepts
from core.domain.sharing.resources import Gang, GangRole, ResourceRequest
from scheduler.planning import phrases
from scheduler.planning.model import QueuedGang, Reason, WaitReasonCode
from scheduler.planning.queue.shares import CPU, GPUS, JOBS, MEMORY, Shares, amount_in, gpu_milli


def is_guaranteed(project: str, need: Mapping[str, int], shares: Shares, *, waits: Gang | None = None) -> bool:
    """Whether a job that holds or would hold ``need`` is within its project's guarantee.

    It is if a guarantee covers its GPUs (for a job without GPUs: its CPUs or memory), and no covering guarantee is
    exceeded with it. GPUs of a model with a guarantee of its own count towards the total GPU guarantee up to that
    amount only, and count first: borrowing one model takes nothing from the guarantee of another model.

    Args:
        waits: the gang, if it does not hold ``need`` yet.
    """
    return _is_within(_of_project(project, shares), shares.occupied_by_project.get(project, {}), need, shares, waits)


def is_guaranteed_to_user(
    project: str, user: str, need: Mapping[str, int], shares: Shares, *, waits: Gang | None = None
) -> bool:
    """The same for the user's guarantee within the project."""
    return _is_within(
        _of_user(project, user, shares), shares.occupied_by_user.get((project, user), {}), need, shares, waits
    )


def is_part_guaranteed(project: str, part: Mapping[str, int], shares: Shares) -> bool:
    """Whether the project would fall below its guarantee without ``part`` of what it holds."""
    return _is_needed(_of_project(project, shares), shares.occupied_by_project.get(project, {}), part)


def is_part_guaranteed_to_user(project: str, user: str, part: Mapping[str, int], shares: Shares) -> bool:
    """The same for the user's guarantee within the project."""
    return _is_needed(_of_user(project, user, shares), shares.occupied_by_user.get((project, user), {}), part)


def _of_project(project: str, shares: Shares) -> Mapping[str, int]:
    account = shares.accounts.get(project)
    return account.quota.guaranteed if account is not None else {}


def _of_user(project: str, user: str, shares: Shares) -> Mapping[str, int]:
    account = shares.accounts.get(project)
    return account.quota.user_guaranteed.get(user, {}) if account is not None else {}


def _is_within(
    guarantee: Mapping[str, int],
    usage: Mapping[str, int],
    need: Mapping[str, int],
    shares: Shares,
    waits: Gang | None,
) -> bool:
    is_covered = False
    for key, wanted in _covering(guarantee, need):
        is_covered = True
        if amount_in(usage, key) + (0 if waits is None else wanted) <= guarantee[key]:
            continue
        if key != GPUS or (waits is not None and not _is_sure(guarantee, waits, shares)):
            return False
        total = usage if waits is None else _sum(usage, need, 1)
        if _counted(guarantee, total, need) > guarantee[key]:
            return False
    return is_covered


def _is_needed(guarantee: Mapping[str, int], usage: Mapping[str, int], part: Mapping[str, int]) -> bool:
    is_covered = False
    for key, less in _covering(guarantee, part):
        is_covered = True
        if amount_in(usage, key) - less < guarantee[key]:
            continue
        if key != GPUS or _counted(guarantee, _sum(usage, part, -1), part) >= guarantee[key]:
            return False
    return is_covered


def _counted(guarantee: Mapping[str, int], usage: Mapping[str, int], judged: Mapping[str, int]) -> int:
    """The amount of ``usage`` that counts towards the total GPU guarantee.

    Models with a guarantee of their own count up to that; other models count in full, but not at all where ``judged``
    has only GPUs of the former.
    """
    model_keys = [key for key in guarantee if key.startswith(f"{GPUS}/")]

    def named(amounts: Mapping[str, int]) -> int:
        return sum(
            amount
            for key, amount in amounts.items()
            if key.startswith(f"{GPUS}/") and _names(model_keys, key.removeprefix(f"{GPUS}/"))
        )

    counted = min(named(usage), sum(min(amount_in(usage, key), guarantee[key]) for key in model_keys))
    return counted if named(judged) == judged[GPUS] else counted + usage.get(GPUS, 0) - named(usage)


def _names(keys: Iterable[str], model: str) -> frozenset[str]:
    """The ``keys`` that count GPUs of ``model``."""
    return frozenset(key for key in keys if accepts(key.removeprefix(f"{GPUS}/"), model))


def _is_sure(guarantee: Mapping[str, int], gang: Gang, shares: Shares) -> bool:
    """Whether all GPUs that the gang may get are counted alike, so that it can be judged by what it will hold."""
    model_keys = [key for key in guarantee if key.startswith(f"{GPUS}/")]
    return bool(model_keys) and all(
        len({_names(model_keys, model) for model in accepted_in(role.request, shares.models)}) <= 1
        for role in gang.roles
    )


def _sum(amounts: Mapping[str, int], added: Mapping[str, int], sign: int) -> dict[str, int]:
    return {key: amounts.get(key, 0) + sign * added.get(key, 0) for key in {**amounts, **added}}


def _covering(guarantee: Mapping[str, int], amounts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The guarantees that cover ``amounts``, with the covered amount; with GPUs only the GPU guarantees."""
    for key in guarantee:
        amount = amount_in(amounts, key)
        if amount and key != JOBS and (not amounts[GPUS] or key.startswith(GPUS)):
            yield key, amount


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """At most ``most`` of ``key`` (see :class:`Quota`) at once. ``user``: the user within the project; empty: all
    users.
    """

    project: str
    user: str
    key: str
    most: int


@dataclass(frozen=True, slots=True)
class QuotaExcess:
    """A job would exceed ``limit``: ``used`` is taken already, and it needs ``needed``."""

    limit: QuotaLimit
    used: int
    needed: int

    @property
    def is_never(self) -> bool:
        return self.needed > self.limit.most

    def reason(self) -> Reason:
        limit = self.limit
        holder = f"user {limit.user}" if limit.user else f"project {limit.project}"
        inside = f" of project {limit.project}" if limit.user else ""
        numbers: dict[str, Any] = {
            "project": limit.project,
            "resource": limit.key,
            "limit": limit.most,
            "held": self.used,
            "needed": self.needed,
            "is_never": self.is_never,
        }
        if limit.user:
            numbers["user"] = limit.user
        if limit.key == JOBS:
            noun = phrases.plural("job", limit.most)
            sentence = f"{holder} may run {limit.most} {noun}{inside} at once, and has {self.used}"
            never = f"{holder} may run no job{inside}; an administrator can raise the quota"
            return Reason(
                WaitReasonCode.QUOTA, never if self.is_never else f"{sentence}; it starts after them", numbers
            )
        most = amount_with_unit(limit.key, limit.most)
        if self.is_never:
            return Reason(
                WaitReasonCode.QUOTA,
                f"needs {amount_with_unit(limit.key, self.needed)} by itself, and {holder} may use {most}{inside} "
                "at once, so it can never start. Ask for less, or ask an administrator for a larger quota",
                numbers,
            )
        return Reason(
            WaitReasonCode.QUOTA,
            f"{holder} may use {most}{inside} at once and has {amount_text(limit.key, self.used)}; this job needs "
            f"{amount_text(limit.key, self.needed)}, and starts by itself when enough of them are given back",
            numbers,
        )


def amount_with_unit(key: str, value: int) -> str:
    """``16 GPUs of h100``, ``8 CPUs``, ``512 GiB of memory``."""
    head, _, model = key.partition("/")
    if head == GPUS:
        noun = "GPU" if value == 1000 else "GPUs"
        return f"{value / 1000:g} {noun} of {model}" if model else f"{value / 1000:g} {noun}"
    return phrases.memory(value) if head == MEMORY else phrases.cpus(value)


def amount_text(key: str, value: int) -> str:
    """The same without the noun, where it is clear: ``14``."""
    return phrases.memory(value) if key == MEMORY else f"{value / 1000:g}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """A job may start, but not on GPU models ``without``, because of ``excess``."""

    without: frozenset[str] = frozenset()
    excess: QuotaExcess | None = None


_ALLOWED: Final = Allowed()


class Quotas:
    """What limits leave to each project and user. Queried after every start; cached where nothing has changed."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._limits: dict[tuple[str, str], list[QuotaLimit]] = {}
        self._limited = {
            account.project
            for account in shares.accounts.values()
            if account.quota.limit or account.quota.user_limit or account.quota.user_limits
        }
        self._cache: dict[tuple[str, str, str], tuple[int, Allowed | QuotaExcess]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there are no limits."""
        return not self._limited

    def check(self, job: QueuedGang) -> Allowed | QuotaExcess:
        """What a job may take; a :class:`QuotaExcess` holds for the rest of the plan, in which usage only grows."""
        if job.project not in self._limited:
            return _ALLOWED
        key = (job.project, job.user, job.shape)
        changes = self._shares.changes.get(job.project, 0)
        cached = self._cache.get(key)
        if cached is not None and (cached[0] == changes or isinstance(cached[1], QuotaExcess)):
            return cached[1]
        need = self._shares.likely_amounts(job.gang, job.shape)
        result = self._check(job.project, job.user, job.gang.roles, need)
        self._cache[key] = (changes, result)
        return result

    def check_unused(self, job: QueuedGang) -> Allowed | QuotaExcess:
        """The same if its project held nothing at all."""
        if job.project not in self._limited:
            return _ALLOWED
        need = self._shares.likely_amounts(job.gang, job.shape)
        return self._check(job.project, job.user, job.gang.roles, need, usage_of=lambda _: 0)

    def check_replica(self, project: str, user: str, role: GangRole) -> Allowed | QuotaExcess:
        """The same for one more replica of a running job."""
        if project not in self._limited:
            return _ALLOWED
        request = role.request
        need = {JOBS: 0, CPU: request.cpu_milli, MEMORY: request.memory_bytes, GPUS: gpu_milli(request)}
        return self._check(project, user, (GangRole(role.role, 1, request),), need)

    def limits_of(self, project: str, user: str) -> Sequence[QuotaLimit]:
        """The limits of the project, then those of the user."""
        limits = self._limits.get((project, user))
        if limits is None:
            account = self._shares.accounts.get(project)
            limits = []
            if account is not None:
                quota = account.quota
                limits = [QuotaLimit(project, "", key, most) for key, most in sorted(quota.limit.items())]
                of_user = quota.user_limits.get(user, quota.user_limit)
                limits += [QuotaLimit(project, user, key, most) for key, most in sorted(of_user.items())]
            self._limits[project, user] = limits
        return limits

    def with_current_usage(self, excess: QuotaExcess) -> QuotaExcess:
        """``excess`` with present usage: jobs of the same project may have started since it was found."""
        return replace(excess, used=self._used(excess.limit))

    def _used(self, limit: QuotaLimit) -> int:
        shares, project = self._shares, limit.project
        usage = (
            shares.occupied_by_user.get((project, limit.user), {})
            if limit.user
            else shares.occupied_by_project.get(project, {})
        )
        return amount_in(usage, limit.key)

    def _check(
        self,
        project: str,
        user: str,
        roles: Sequence[GangRole],
        need: Mapping[str, int],
        usage_of: Callable[[QuotaLimit], int] | None = None,
    ) -> Allowed | QuotaExcess:
        usage_of = usage_of or self._used
        exceeded: list[QuotaExcess] = []
        narrowing: list[tuple[QuotaExcess, frozenset[str]]] = []
        for limit in self.limits_of(project, user):
            usage = usage_of(limit)
            if "/" not in limit.key:
                needed = need[limit.key]
                if needed and usage + needed > limit.most:
                    exceeded.append(QuotaExcess(limit, usage, needed))
                continue
            models = frozenset(m for m in self._shares.models if accepts(limit.key.partition("/")[2], m))
            gpu_roles = [(role, self._accepted(role)) for role in roles if gpu_milli(role.request)]
            required = sum(_devices(role) for role, accepted in gpu_roles if accepted and accepted <= models)
            if required and usage + required > limit.most:
                exceeded.append(QuotaExcess(limit, usage, required))
                continue
            most = sum(_devices(role) for role, accepted in gpu_roles if accepted & models)
            if usage + most > limit.most:
                narrowing.append((QuotaExcess(limit, usage, most), models))
        if exceeded:
            return min(exceeded, key=lambda excess: not excess.is_never)
        if not narrowing:
            return _ALLOWED
        without = frozenset[str]().union(*(models for _, models in narrowing))
        blocked = [
            _binding(accepted, narrowing)
            for accepted in map(self._accepted, roles)
            if accepted and accepted <= without and not any(accepted <= models for _, models in narrowing)
        ]
        if blocked:  # a limit that makes a start impossible comes first
            return min(blocked, key=lambda excess: not excess.is_never)
        return Allowed(without, narrowing[0][0])

    def _accepted(self, role: GangRole) -> frozenset[str]:
        """The models present in the cluster that the role accepts."""
        return frozenset(accepted_in(role.request, self._shares.models))


def accepted_in(request: ResourceRequest, models: Sequence[str]) -> Sequence[str]:
    """The ``models`` that a replica accepts; none without GPUs."""
    if not gpu_milli(request):
        return ()
    return accepted_models(request.gpu_models, models) if request.gpu_models else models


def _binding(accepted: frozenset[str], narrowing: Sequence[tuple[QuotaExcess, frozenset[str]]]) -> QuotaExcess:
    """The limit to report when limits together leave a role none of its accepted models.

    Prefers one of a model on which the job could start once other jobs return what they hold. Only if there is none,
    the job can never start.
    """
    never = frozenset[str]().union(*(models for excess, models in narrowing if excess.is_never))
    possible = accepted - never
    return next(
        excess
        for excess, models in narrowing
        if (not excess.is_never and models & possible if possible else excess.is_never and models & accepted)
    )


def _devices(role: GangRole) -> int:
    return role.replicas * gpu_milli(role.request)
