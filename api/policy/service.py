"""The planner's settings: what holds, and changing it."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from trainmaster.wire.policy import PolicyUpdate, PolicyView

from api.auth import Caller
from api.policy.settings import BY_NAME, SETTINGS, duration_text, read_settings, text_of, view_of
from api.work import Work
from core.bell import TOPIC_TICK
from core.db.repositories.events import append_event
from core.db.repositories.planning import KeptPolicy, read_policy, write_policy
from core.domain.policy import Policy, QueueOrder, parse_policy


def get(work: Work) -> PolicyView:
    return _view(read_policy(work.session))


def change(work: Work, caller: Caller, body: PolicyUpdate) -> PolicyView:
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
    work.ring(TOPIC_TICK)
    return _view(kept)


def _view(kept: KeptPolicy) -> PolicyView:
    return PolicyView(
        settings=[view_of(setting, kept.policy) for setting in SETTINGS],
        updated_at=kept.updated_at,
        updated_by=kept.updated_by or None,
        warnings=[*_unreadable(kept), *warnings_of(kept.policy)],
    )


def _unreadable(kept: KeptPolicy) -> list[str]:
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
_TOLD_LEVELS: Final = 4


def _even_levels(slice_s: float) -> str:
    return ",".join(duration_text(number * slice_s) for number in range(1, _TOLD_LEVELS + 1))


def warnings_of(policy: Policy) -> list[str]:
    """What is allowed and probably not meant, a sentence each."""
    found = []
    if policy.time_slice_s is not None and policy.time_slice_s < policy.min_run_time_s:
        found.append("time_slice is shorter than min_run_time: nobody gives place before min_run_time is over.")
    if policy.time_slice_s is not None and policy.time_slice_s < 10 * (policy.restart_cost_s + policy.grace_s):
        found.append(
            "time_slice is less than ten times restart_cost and grace: jobs would spend much of their turns on stopping and "
            "starting."
        )
    if policy.time_slice_s is not None and policy.order is QueueOrder.FIFO:
        found.append(
            "with order fifo turns do not go round: only an older job that waits takes the place of a younger one."
        )
    if policy.time_slice_s is not None and policy.order is QueueOrder.ATTAINED_SERVICE:
        widest = max(after - before for before, after in pairwise((0.0, *policy.levels_gpu_s)))
        if widest > _MANY_SLICES * policy.time_slice_s:
            found.append(
                "with order attained-service jobs take turns where one of them goes down a level, not at every time_slice: who "
                "is on one level with those that wait stays. Levels as wide as a slice of the usual number of GPUs, such as "
                f"levels_gpu={_even_levels(policy.time_slice_s)}, make equal jobs take turns at each."
            )
    if not policy.is_fair and policy.preempts_shares:
        found.append("preempts_shares has no effect while fair is off.")
    return found
