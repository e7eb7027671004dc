"""Exchange of resources between fair shares: amounts held and needed, and whether a preemption evens out shares."""

from __future__ import annotations

from collections.abc import Mapping

from core.domain.sharing.gpus import accepted_models
from scheduler.planning.model import QueuedGang, RunningGang, Snapshot
from scheduler.planning.queue.shares import GPUS, JOBS, Shares, gpu_milli, model_key


class ShareExchange:
    """Compares the shares of preemptor and victim; amounts held are read from ``shares``, which may
    change meanwhile.
    """

    def __init__(self, snapshot: Snapshot, shares: Shares) -> None:
        self.shares = shares
        self._usage: dict[str, Mapping[str, int]] = {}
        self._needs: dict[tuple[str, tuple[str, ...]], Mapping[str, int]] = {}
        projects = {job.project for job in snapshot.queued} | {gang.project for gang in snapshot.running}
        self._is_one_project = len(projects) < 2

    def usage_of(self, gang: RunningGang) -> Mapping[str, int]:
        known = self._usage.get(gang.job_id)
        if known is None:
            known = self._usage[gang.job_id] = self.shares.running_amounts(gang)
        return known

    def needs_of(self, job: QueuedGang) -> Mapping[str, int]:
        return self.shares.likely_amounts(job.gang, job.shape)

    def borrows(self, gang: RunningGang, need: Mapping[str, int], user: str | None = None) -> bool:
        """Whether the gang's project (or ``user`` within it) exceeds its guarantee in a resource that ``need`` asks
        for and ``gang`` holds.
        """
        account = self.shares.accounts.get(gang.project)
        guaranteed: Mapping[str, int] = {}
        if account is not None:
            guaranteed = account.quota.guaranteed if user is None else account.quota.user_guaranteed.get(user, {})
        shares, project = self.shares, gang.project
        all_held = (
            shares.held_by_project.get(project, {}) if user is None else shares.held_by_user.get((project, user), {})
        )
        has = self.usage_of(gang)
        keys = [
            key
            for key, amount in need.items()
            if amount and has.get(key) and key != JOBS and (not need[GPUS] or key.startswith(GPUS))
        ]
        named = [key for key in keys if key in guaranteed]
        return bool(keys) and (not named or any(all_held.get(key, 0) > guaranteed[key] for key in named))

    def evens_out(self, job: QueuedGang, gang: RunningGang, *, strictly: bool) -> bool:
        """Whether the preemptor's project, with the job, has a smaller share than the victim's project with the gang.

        Then the exchange lowers the larger of the two shares, and with it the sorted vector of all shares (max-min
        fairness).
        """
        need = self._need_there(job, gang)
        held_now = self.shares.held_by_project.setdefault(job.project, {})
        for key in need:
            held_now.setdefault(key, 0)
        mine = self.shares.project_share(job.project, {key: -amount for key, amount in need.items()})
        theirs = self.shares.project_share(gang.project)
        return mine < theirs if strictly else mine <= theirs

    def _need_there(self, job: QueuedGang, gang: RunningGang) -> Mapping[str, int]:
        """What ``job`` would hold in the place of ``gang``: GPUs of the models that are there, which may be scarce
        ones.
        """
        models = tuple(key.partition("/")[2] for key, amount in self.usage_of(gang).items() if "/" in key and amount)
        known = self._needs.get((job.shape, models))
        if known is None:
            found = dict(self.needs_of(job))
            parts = [(role, gpu_milli(role.request)) for role in job.gang.roles if gpu_milli(role.request)]
            if (
                models
                and parts
                and all(accepted_models(role.request.gpu_models or models, models) for role, _ in parts)
            ):
                found = {key: amount for key, amount in found.items() if "/" not in key}
                for role, milli in parts:
                    for model in accepted_models(role.request.gpu_models or models, models):
                        found[model_key(model)] = found.get(model_key(model), 0) + role.replicas * milli
            known = self._needs[job.shape, models] = found
        return known

    def evens_out_in_project(self, job: QueuedGang, gang: RunningGang) -> bool:
        """The same between two users of one project."""
        need, who = self._need_there(job, gang), (job.project, job.user)
        held_now = self.shares.held_by_user.setdefault(who, {})
        for key in need:
            held_now.setdefault(key, 0)
        mine = self.shares.user_share(*who, {key: -amount for key, amount in need.items()})
        return mine < self.shares.user_share(gang.project, gang.user)

    def keeps_share(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Whether the exchange leaves their common project with no more of any resource."""
        if self._is_one_project:
            return True
        has = self.usage_of(gang)
        return all(amount <= has.get(key, 0) for key, amount in self._need_there(job, gang).items() if key != JOBS)
