"""Quarantine of nodes on which jobs end for machine faults. Pure: facts in, changes out; deterministic.

Three rules protect innocent nodes: ends that are the program's own are no facts here
(:mod:`core.domain.jobs.machine_faults`); a job that fails in the same way on two nodes counts for neither; and only a
fraction of the nodes of one kind is quarantined at once, never the last one that takes work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import floor
from typing import Any, Final, TypeAlias

from core.domain.jobs.machine_faults import REFUSED
from core.domain.sharing.policy import Policy

# Losses within this time are one loss: a reboot ends everything on the node.
_SAME_LOSS: Final = timedelta(minutes=5)
# A node without quarantine for so long starts again with the shortest time.
_FORGIVEN: Final = timedelta(days=7)
_LONGEST: Final = timedelta(days=365)
_SHOWN: Final = 5
# At most so many causes are stored, the newest, or as many as the policy asks for.
_MOST_CAUSES: Final = 20

# (node, job, kind of fault, the fault if certain)
_FailureKey: TypeAlias = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class NodeFailureFact:
    """A replica of job ``job_id``, named ``job``, that ended on ``node`` for a machine fault."""

    node: str
    job_id: str
    job: str
    at: datetime
    error: str
    is_certain: bool = False
    is_loss: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "job": self.job,
            "at": self.at.isoformat(),
            "error": self.error,
            "is_certain": self.is_certain,
            "is_loss": self.is_loss,
        }

    @classmethod
    def from_json(cls, node: str, data: Mapping[str, Any]) -> NodeFailureFact:
        return cls(
            node,
            data["job_id"],
            data["job"],
            datetime.fromisoformat(data["at"]),
            data["error"],
            bool(data.get("is_certain")),
            bool(data.get("is_loss")),
        )


@dataclass(frozen=True, slots=True)
class NodeCandidate:
    """A node as input of the rule. ``kind``: equal for interchangeable nodes.

    ``takes_work``: it is ready and not cordoned. ``causes`` and ``until``: of its current quarantine, or of one that
    was suspended since no other node took work (``is_released_for_capacity``); ``()`` without any.
    """

    name: str
    kind: tuple[Any, ...] = ()
    takes_work: bool = True
    is_quarantined: bool = False
    is_released_for_capacity: bool = False
    causes: tuple[NodeFailureFact, ...] = ()
    until: datetime | None = None
    trusted_since: datetime | None = None
    count: int = 0


@dataclass(frozen=True, slots=True)
class Quarantine:
    """``until``: ``None``: until it is released. ``count``: the number of quarantines in a row."""

    causes: tuple[NodeFailureFact, ...]
    until: datetime | None
    count: int


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A quarantine that is withheld because of ``why_not``, which continues a sentence after "but". Over at ``until``.

    ``is_released_for_capacity``: it was quarantined, and will be again when another node takes work.
    """

    causes: tuple[NodeFailureFact, ...]
    why_not: str
    until: datetime
    is_released_for_capacity: bool = False


@dataclass(slots=True)
class QuarantineChanges:
    """By node. ``releases``: node -> reason; among them ``refuted``: wrongly quarantined nodes, and
    ``released_for_capacity``: nodes that are only suspected from now on, because no other one takes work.
    """

    quarantines: dict[str, Quarantine] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)
    refuted: set[str] = field(default_factory=set)
    released_for_capacity: set[str] = field(default_factory=set)
    suspicions: dict[str, Suspicion] = field(default_factory=dict)


def decide_quarantines(
    nodes: Sequence[NodeCandidate],
    failures: Sequence[NodeFailureFact],
    successes: Mapping[str, datetime],
    policy: Policy,
    now: datetime,
) -> QuarantineChanges:
    """The changes for ``nodes``, which are all nodes.

    Args:
        failures: at least those of the last ``quarantine_window_s``, and all of jobs among the causes of a quarantine.
        successes: node -> last success of a replica.
    """
    changes = QuarantineChanges()
    window = timedelta(seconds=policy.quarantine_window_s)
    failed_on_other_nodes = _failed_on_other_nodes(failures, window)
    for node in nodes:
        if node.is_quarantined and node.until is not None and node.until <= now:
            changes.releases[node.name] = "its time is over"
    if not policy.quarantines:
        return changes
    _release_nodes(changes, nodes, failed_on_other_nodes, policy)
    by_node: dict[str, list[NodeFailureFact]] = {}
    for failure in failures:
        if _failure_key(failure) not in failed_on_other_nodes and failure.at > now - window:
            by_node.setdefault(failure.node, []).append(failure)
    found: list[tuple[bool, datetime, NodeCandidate, tuple[NodeFailureFact, ...]]] = []
    for node in nodes:
        if node.is_quarantined and node.name not in changes.released_for_capacity:
            continue
        causes = _causes(node, by_node.get(node.name, ()), successes.get(node.name), policy)
        pending = _pending_causes(node, failed_on_other_nodes, policy, now)
        if pending and (not causes or pending[-1].is_certain):
            causes = pending
        if causes:
            found.append((not causes[-1].is_certain, causes[-1].at, node, causes))
    closed_nodes = {node.name for node in nodes if node.is_quarantined} - changes.releases.keys()
    # Certain faults first: they get the remaining allowance.
    for _, _, node, causes in sorted(found, key=lambda failure: (failure[0], failure[1], failure[2].name)):
        why_not = _why_not(node, nodes, closed_nodes, policy)
        if why_not:
            is_pending = bool(_pending_causes(node, failed_on_other_nodes, policy, now))
            until = (node.until or now + _FORGIVEN) if is_pending else causes[0].at + window
            changes.suspicions[node.name] = Suspicion(causes, why_not, until, is_pending)
            continue
        closed_nodes.add(node.name)
        is_again = node.trusted_since is not None and now - node.trusted_since < _FORGIVEN
        count = node.count + 1 if is_again else 1
        changes.quarantines[node.name] = Quarantine(causes, _until(now, count, policy), count)
    return changes


def describe_causes(causes: Sequence[NodeFailureFact], hidden: Collection[str] = ()) -> str:
    """A phrase such as ``uncorrectable ECC error in job x``. ``hidden``: jobs whose names the reader may not see."""

    def name(cause: NodeFailureFact) -> str:
        return "a job of another project" if cause.job_id in hidden else f"job {cause.job}"

    if len(causes) == 1:
        return f"{causes[0].error} in {name(causes[0])}"
    shown = ", ".join(f"{name(cause)} ({cause.error})" for cause in causes[:_SHOWN])
    more = f" and {len(causes) - _SHOWN} more" if len(causes) > _SHOWN else ""
    return f"{len(causes)} jobs in a row ended for suspected faults of the machine: {shown}{more}"


def errors_text(causes: Iterable[NodeFailureFact]) -> str:
    """The errors for readers who may see no job: ``input/output error, Xid 94``."""
    return ", ".join(dict.fromkeys(cause.error for cause in causes))


def at_text(at: datetime) -> str:
    """An absolute time for stored sentences."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def until_text(until: datetime | None) -> str:
    return "until it is released" if until is None else f"until {at_text(until)}"


# Helpers


def _failure_kind(failure: NodeFailureFact) -> str:
    """The kind of a failure for comparison: the loss of another node is unrelated to a program's error here."""
    if failure.is_loss:
        return "loss"
    return "refusal" if failure.error == REFUSED.error else "words"


def _failure_key(failure: NodeFailureFact) -> _FailureKey:
    return failure.node, failure.job_id, _failure_kind(failure), failure.error if failure.is_certain else ""


def _refutes(failure: NodeFailureFact, refuted: NodeFailureFact) -> bool:
    """Whether ``failure`` shows that ``refuted``, of the same job on another node, is no fault of that node."""
    if refuted.is_certain:
        return failure.is_certain and failure.error == refuted.error
    return _failure_kind(failure) == _failure_kind(refuted)


def _failed_on_other_nodes(failures: Iterable[NodeFailureFact], window: timedelta) -> dict[_FailureKey, set[str]]:
    """Failures that a job had on several nodes within the window, with the other nodes: no node's fault."""
    by_job: dict[str, list[NodeFailureFact]] = {}
    for failure in failures:
        by_job.setdefault(failure.job_id, []).append(failure)
    found: dict[_FailureKey, set[str]] = {}
    for ends in by_job.values():
        ends.sort(key=lambda failure: (failure.at, failure.node))
        for i, first in enumerate(ends):
            for second in ends[i + 1 :]:
                if second.at - first.at > window:
                    break
                if second.node == first.node:
                    continue
                for failure, refuted in ((first, second), (second, first)):
                    if _refutes(failure, refuted):
                        found.setdefault(_failure_key(refuted), set()).add(failure.node)
    return found


def _causes(
    node: NodeCandidate, ends: Iterable[NodeFailureFact], success: datetime | None, policy: Policy
) -> tuple[NodeFailureFact, ...]:
    """The failures that justify a quarantine, oldest first; ``()``: not enough."""
    fresh = sorted(
        (failure for failure in ends if node.trusted_since is None or failure.at > node.trusted_since),
        key=lambda failure: (failure.at, failure.job_id),
    )
    certain = next((failure for failure in fresh if failure.is_certain), None)
    if certain is not None:
        return (certain,)
    counted = _incidents(failure for failure in fresh if success is None or failure.at > success)
    if len(counted) < policy.quarantine_failures:
        return ()
    return tuple(counted[-max(_MOST_CAUSES, int(policy.quarantine_failures)) :])


def _release_nodes(
    changes: QuarantineChanges,
    nodes: Sequence[NodeCandidate],
    failed_on_other_nodes: Mapping[_FailureKey, set[str]],
    policy: Policy,
) -> None:
    """Release nodes early whose causes are refuted, and then nodes that are needed because no other takes work."""
    for node in nodes:
        if node.is_quarantined and node.name not in changes.releases:
            left = [cause for cause in node.causes if _failure_key(cause) not in failed_on_other_nodes]
            # A larger setting alone releases nothing.
            if len(left) < len(node.causes) and not _enough(left, policy):
                changes.releases[node.name] = _refuted(node, failed_on_other_nodes)
                changes.refuted.add(node.name)
    for name in _released_for_capacity(nodes, changes.releases):
        changes.releases[name] = "no other node of its kind does, so it is no more than suspected until one does"
        changes.released_for_capacity.add(name)


def _released_for_capacity(nodes: Sequence[NodeCandidate], releases: Collection[str]) -> list[str]:
    """For each kind with only quarantined nodes, the node that is least certainly broken."""
    by_kind: dict[tuple[Any, ...], list[NodeCandidate]] = {}
    for node in nodes:
        if node.takes_work:
            by_kind.setdefault(node.kind, []).append(node)
    found = []
    for alike in by_kind.values():
        if all(candidate.is_quarantined and candidate.name not in releases for candidate in alike):
            surely = {candidate.name: sum(cause.is_certain for cause in candidate.causes) for candidate in alike}
            found.append(
                min(alike, key=lambda candidate: (surely[candidate.name], len(candidate.causes), candidate.name)).name
            )
    return found


def _pending_causes(
    node: NodeCandidate, failed_on_other_nodes: Mapping[_FailureKey, set[str]], policy: Policy, now: datetime
) -> tuple[NodeFailureFact, ...]:
    """Why it returns to quarantine as soon as another node takes work; ``()``: it need not."""
    is_over = node.until is not None and node.until <= now
    if is_over or not (node.is_released_for_capacity or node.is_quarantined):
        return ()
    left = tuple(cause for cause in node.causes if _failure_key(cause) not in failed_on_other_nodes)
    return node.causes if len(left) == len(node.causes) else left if _enough(left, policy) else ()


def _incidents(ends: Iterable[NodeFailureFact]) -> list[NodeFailureFact]:
    """One failure for each job, and for each loss of the node."""
    counted: list[NodeFailureFact] = []
    jobs: set[str] = set()
    lost_at: datetime | None = None
    for failure in ends:
        if failure.is_loss:
            is_same = lost_at is not None and failure.at - lost_at <= _SAME_LOSS
            lost_at = failure.at
            if is_same:
                continue
        if failure.job_id not in jobs:
            jobs.add(failure.job_id)
            counted.append(failure)
    return counted


def _enough(causes: Sequence[NodeFailureFact], policy: Policy) -> bool:
    return any(cause.is_certain for cause in causes) or len(causes) >= policy.quarantine_failures


def _refuted(node: NodeCandidate, failed_on_other_nodes: Mapping[_FailureKey, set[str]]) -> str:
    job = next(cause for cause in node.causes if _failure_key(cause) in failed_on_other_nodes)
    others = ", ".join(sorted(failed_on_other_nodes[_failure_key(job)])[:_SHOWN])
    return f"job {job.job} failed so on {others}, too, so it is not this node's fault"


def _why_not(node: NodeCandidate, nodes: Iterable[NodeCandidate], closed_nodes: Collection[str], policy: Policy) -> str:
    alike = [candidate for candidate in nodes if candidate.kind == node.kind]
    if not any(
        candidate.takes_work and candidate.name not in closed_nodes and candidate.name != node.name
        for candidate in alike
    ):
        return "it is the last node of its kind that takes work"
    closed = [candidate for candidate in alike if candidate.name in closed_nodes]
    most = max(1, floor(policy.quarantine_share * len(alike)))
    if len(closed) >= most:
        are = "is" if len(closed) == 1 else "are"
        return (
            f"{len(closed)} of the {len(alike)} nodes of its kind {are} quarantined already, and no more may be at "
            "once (quarantine_share)"
        )
    return ""


def _until(now: datetime, count: int, policy: Policy) -> datetime | None:
    if policy.quarantine_release_s is None:
        return None
    longest_s = max(_LONGEST.total_seconds(), policy.quarantine_release_s)
    return now + timedelta(seconds=min(longest_s, policy.quarantine_release_s * 2 ** min(count - 1, 40)))
