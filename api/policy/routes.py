"""The planner's settings: read, change, and warn of probable mistakes."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from trainmaster.wire.scheduling import PolicyUpdate, PolicyView

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin, Reader
from api.http.routing import new_router
from api.policy.settings import BY_NAME, SETTINGS, duration_text, read_settings, text_of, view_of
from core.db.repositories.planning import StoredPolicy, read_policy, write_policy
from core.domain.sharing.policy import Policy, QueueOrder, parse_policy
from core.wakeups import TOPIC_TICK

router = new_router("policy", "/policy")

_MANY_SLICES: Final = 8  # time slices of one GPU: a longer level is not a turn any more


@router.get("", operation_id="get_policy", summary="The planner's settings")
def get_policy(_caller: Reader, context: AppContextDep) -> PolicyView:
    """Queue order, fairness, preemption, quarantine and defragmentation."""
    with context.read() as work:
        return _view(read_policy(work.session))


@router.patch("", operation_id="update_policy", summary="Change the planner's settings")
def update_policy(body: PolicyUpdate, caller: PlatformAdmin, context: AppContextDep) -> PolicyView:
    """Settings that are not named stay. Changes apply from the next tick; `warnings` lists probable mistakes."""
    with context.write() as work:
        stored = read_policy(work.session)
        policy = parse_policy(read_settings(body.settings), base=stored.policy)
        defaults = Policy().to_json()
        settings = {name: value for name, value in policy.to_json().items() if value != defaults[name]}
        # Stored values that could not be read are reset to their defaults.
        stored = write_policy(work.session, settings, previous=stored, by=caller.user, now=work.now)
        work.record_event("policy.changed", caller.actor, data={"settings": body.settings})
        work.notify(TOPIC_TICK)
        return _view(stored)


def _view(stored: StoredPolicy) -> PolicyView:
    return PolicyView(
        settings=[view_of(setting, stored.policy) for setting in SETTINGS],
        updated_at=stored.updated_at,
        updated_by=stored.updated_by or None,
        warnings=[*_unreadable(stored), *warnings_of(stored.policy)],
    )


def _unreadable(stored: StoredPolicy) -> list[str]:
    found = []
    for field, why in stored.wrong.items():
        setting = BY_NAME.get(field)
        if setting is None:
            what = f"The stored setting {field!r} is unknown to this version" if field else why.removesuffix(".")
            found.append(f"{what}; another version wrote it. It has no effect; the next change removes it.")
            continue
        words = why.removesuffix(".").replace(setting.field, setting.name)
        default = text_of(setting, getattr(Policy(), setting.field))
        found.append(
            f"This version cannot read the stored value of {setting.name} ({words}), so the default {default} applies. "
            f"`trainmaster policy set {setting.name}=…` fixes it; so does any other change."
        )
    return found


def _turns(policy: Policy) -> list[tuple[str, float]]:
    turns = (("time_slice", policy.time_slice_s), ("rotation", policy.rotation_s))
    return [(name, turn_s) for name, turn_s in turns if turn_s is not None]


def _of_turns(name: str, turn_s: float, policy: Policy) -> list[str]:
    found = []
    if turn_s < policy.min_run_time_s:
        found.append(
            f"{name} is shorter than min_run_time, {duration_text(policy.min_run_time_s)}: no job is preempted before "
            "min_run_time is over."
        )
    if turn_s < 10 * (policy.restart_cost_s + policy.grace_s):
        found.append(
            f"{name} is less than ten times restart_cost plus grace: jobs would spend much of their turns on stopping "
            "and starting."
        )
    return found


def _rotates_every(policy: Policy) -> str:
    """A hint with a rotation that is long enough to be worth its restarts."""
    turn_s = max(policy.time_slice_s or 0, policy.min_run_time_s, 10 * (policy.restart_cost_s + policy.grace_s))
    return f"`rotation`, such as rotation={duration_text(turn_s)}, lets equal jobs take turns."


def warnings_of(policy: Policy) -> list[str]:
    """Valid settings that are probably mistakes, one sentence each."""
    found = [warning for name, turn_s in _turns(policy) for warning in _of_turns(name, turn_s, policy)]
    rotates = _rotates_every(policy)
    if policy.time_slice_s is not None and policy.rotation_s is None and policy.order is QueueOrder.FIFO:
        found.append(
            "with order fifo, time_slice does not rotate jobs: only an older waiting job replaces a younger running "
            f"one. {rotates}"
        )
    if policy.time_slice_s is not None and policy.rotation_s is None and policy.order is QueueOrder.ATTAINED_SERVICE:
        widest = max(after - before for before, after in pairwise((0.0, *policy.levels_gpu_s)))
        if widest > _MANY_SLICES * policy.time_slice_s:
            found.append(
                "with order attained-service, a running job is replaced when it drops a level, not at every "
                f"time_slice: it stays while it is on the same level as the waiting jobs. {rotates}"
            )
    if policy.rotation_s is not None and policy.time_slice_s is not None and policy.time_slice_s > policy.rotation_s:
        found.append(
            "time_slice is longer than rotation and has no effect: after rotation, the first job by order is placed "
            "anyway."
        )
    if policy.rotation_s is not None and policy.rotation_s >= policy.starvation_s:
        found.append(
            "rotation is not shorter than starvation: a job that waits for one turn counts as starved, so jobs rotate "
            "by age alone."
        )
    if not policy.is_fair and policy.preempts_shares:
        found.append("preempts_shares has no effect while fair is off.")
    return found
