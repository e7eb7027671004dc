"""What to do with one attempt now, from its snapshot. Pure: values in, values out.

Three steps, each over the result of the step before: observations become moves of replicas, the completion rules are
applied, and the actions for the executor are listed. Deciding again on the result yields nothing new.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from core.domain.jobs.lifecycle import ReplicaEvent
from core.domain.jobs.states import ReplicaState
from scheduler.control.attempts.attempt_snapshot import AttemptSnapshot, stop_grace
from scheduler.control.attempts.completion_rules import apply_rules
from scheduler.control.attempts.decision import Decision
from scheduler.control.attempts.decision_draft import DecisionDraft
from scheduler.control.attempts.ending import attempt_end
from scheduler.control.attempts.observations import apply_observations

# Time after SIGKILL was due: then the executor is told to remove the rest.
KILL_SLACK: Final = timedelta(seconds=30)


def decide_attempt(snapshot: AttemptSnapshot) -> Decision:
    """What to record and to do now.

    Raises:
        StaleWrite: the executor shows a newer generation of a replica than the rows, which are outdated.
    """
    draft = DecisionDraft(snapshot)
    apply_observations(draft)
    apply_rules(draft)
    _plan_actions(draft)
    return draft.decision()


def _plan_actions(draft: DecisionDraft) -> None:
    live = [m for m in draft.members.values() if not m.is_over]
    if not live and draft.is_ending:
        draft.end = attempt_end(draft.snapshot, draft.world_members(), draft.stop, draft.now)
        return
    for member in live:
        if draft.must_stop(member):
            draft.stops.append(member)
        elif member.state is ReplicaState.PENDING:
            draft.creates.append(member)
    if draft.stop is not None and live:
        patience = draft.stop.at + stop_grace(draft.snapshot.job.spec, draft.stop) + KILL_SLACK
        if patience <= draft.now:
            # The engine does not end them: it is told to remove everything, and that is their end.
            for member in live:
                draft.move(member, ReplicaEvent.STOP, draft.now, reason="did not end in time and was removed")
            draft.stops.clear()
            draft.end = attempt_end(draft.snapshot, draft.world_members(), draft.stop, draft.now)
        else:
            draft.recheck_times.append(patience)
