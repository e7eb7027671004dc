"""The planner's settings: what holds, and changing it."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from trainmaster.wire.policy import PolicyUpdate, PolicyView

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.policy.settings import BY_NAME, SETTINGS, duration_text, read_settings, text_of, view_of
from core.db.repositories.events import append_event
from core.db.repositories.planning import StoredPolicy, read_policy, write_policy
from core.domain.sharing.policy import Policy, QueueOrder, parse_policy
from core.wakeups import TOPIC_TICK


def get(work: UnitOfWork) -> PolicyView:
    return _view(read_policy(work.session))


def change(work: UnitOfWork, caller: Caller, body: PolicyUpdate) -> PolicyView:
    """Set what ``body`` names. What could not be read of what was kept is as by default from now on.

    Raises:
        InvalidRequest: settings or values that are none, all of them; nothing is changed.
        StaleWrite: somebody else changed them in the same moment.
    """
    seen = read_policy(work.session)
    policy = parse_policy(read_settings(body.settings), base=seen.policy)
    at_first = Policy().to_json()
    settings = {name: value for name, value in policy.to_json().items() if value != at_first[name]}
    kept = write_policy(work.session, settings, seen=seen, by=caller.user, now=work.now)
    append_event(work.session, at=work.now, kind="policy.changed", actor=caller.actor, data={"settings": body.settings})
    work.notify(TOPIC_TICK)
    return _view(kept)


def _view(kept: StoredPolicy) -> PolicyView:
    return PolicyView(
        settings=[view_of(setting, kept.policy) for setting in SETTINGS],
        updated_at=kept.updated_at,
        updated_by=kept.updated_by or None,
        warnings=[*_unreadable(kept), *warnings_of(kept.policy)],
    )


def _unreadable(kept: StoredPolicy) -> list[str]:
    found = []
    for field, why in kept.wrong.items():
        setting = BY_NAME.get(field)
        if setting is None:
            what = f"A setting {field!r} is kept that this version does not know" if field else why.removesuffix(".")
            found.append(f"{what}; another version wrote it. It has no effect, and goes with the next change.")
            continue
        words = why.removesuffix(".").replace(setting.field, setting.name)
        default = text_of(setting, getattr(Policy(), setting.field))
        found.append(
            f"{setting.name} is kept as a value that this version cannot read ({words}), so it is as by default, {default}. "
            f"`trainmaster policy set {setting.name}=…` mends it; so does any other change."
        )
    return found


_MANY_SLICES: Final = 8  # of one GPU: a level that lasts longer is no turn any more


def _turns(policy: Policy) -> list[tuple[str, float]]:
    told = (("time_slice", policy.time_slice_s), ("rotation", policy.rotation_s))
    return [(name, turn_s) for name, turn_s in told if turn_s is not None]


def _of_turns(name: str, turn_s: float, policy: Policy) -> list[str]:
    found = []
    if turn_s < policy.min_run_time_s:
        found.append(
            f"{name} is shorter than min_run_time, {duration_text(policy.min_run_time_s)}: nobody gives place before min_run_time "
            "is over."
        )
    if turn_s < 10 * (policy.restart_cost_s + policy.grace_s):
        found.append(
            f"{name} is less than ten times restart_cost and grace: jobs would spend much of their turns on stopping and "
            "starting."
        )
    return found


def _rotates_every(policy: Policy) -> str:
    """How equal jobs would take turns: not more often than pays."""
    turn_s = max(policy.time_slice_s or 0, policy.min_run_time_s, 10 * (policy.restart_cost_s + policy.grace_s))
    return f"`rotation`, such as rotation={duration_text(turn_s)}, lets equal jobs take turns."


def warnings_of(policy: Policy) -> list[str]:
    """What is allowed and probably not meant, a sentence each."""
    found = [one for name, turn_s in _turns(policy) for one in _of_turns(name, turn_s, policy)]
    rotates = _rotates_every(policy)
    if policy.time_slice_s is not None and policy.rotation_s is None and policy.order is QueueOrder.FIFO:
        found.append(
            "with order fifo turns do not go round: only an older job that waits takes the place of a younger one. "
            f"{rotates}"
        )
    if policy.time_slice_s is not None and policy.rotation_s is None and policy.order is QueueOrder.ATTAINED_SERVICE:
        widest = max(after - before for before, after in pairwise((0.0, *policy.levels_gpu_s)))
        if widest > _MANY_SLICES * policy.time_slice_s:
            found.append(
                "with order attained-service jobs take turns where one of them goes down a level, not at every time_slice: who "
                f"is on one level with those that wait stays. {rotates}"
            )
    if policy.rotation_s is not None and policy.time_slice_s is not None and policy.time_slice_s > policy.rotation_s:
        found.append(
            "time_slice is longer than rotation and has no effect: after rotation who comes first by order has the place, too."
        )
    if policy.rotation_s is not None and policy.rotation_s >= policy.starvation_s:
        found.append(
            "rotation is not shorter than starvation: who waits for one turn of another counts as if it had had none, so turns "
            "go by age alone."
        )
    if not policy.is_fair and policy.preempts_shares:
        found.append("preempts_shares has no effect while fair is off.")
    return found
