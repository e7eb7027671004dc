"""What is done for a deployed model: the decisions themselves, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core.domain.serving.rollout import (
    DeployedModel,
    DeploymentState,
    Revision,
    ServingReplicaStatus,
    ServingState,
    backoff,
    plan,
)

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
TEN = timedelta(seconds=10)


def revision(number: int, **more: object) -> Revision:
    fields = {"ready_timeout": TEN, "drain": timedelta(seconds=5), "max_surge": 1, "max_unavailable": 0, **more}
    return Revision(number, **fields)  # type: ignore[arg-type]


def server(name: str, of: int, state: ServingState = ServingState.READY, **more: object) -> ServingReplicaStatus:
    fields = {
        "created_at": NOW - TEN,
        "running_since": NOW - TEN / 2,
        "is_healthy": state is ServingState.READY,
        **more,
    }
    return ServingReplicaStatus(name, of, state, **fields)  # type: ignore[arg-type]


def deployed(*servers: ServingReplicaStatus, wanted: int = 2, replicas: int = 2, **rules: object) -> DeployedModel:
    revisions = (revision(1, stable_at=NOW), revision(2, **rules))
    return DeployedModel(DeploymentState.ACTIVE, replicas, wanted, 1, revisions, servers)


def test_an_update_begins_with_one_more() -> None:
    steps = plan(deployed(server("a", 1), server("b", 1)), NOW)
    assert (steps.start, steps.cancel, steps.servers) == (1, {}, {})


def test_an_update_without_room_begins_with_one_less() -> None:
    steps = plan(deployed(server("a", 1), server("b", 1), max_surge=0, max_unavailable=1), NOW)
    assert [one.state for one in steps.servers.values()] == [ServingState.DRAINING]
    assert steps.start == 1  # in the place of the one that drains


def test_requested_again_nothing_more_is_begun() -> None:
    starting = server("c", 2, ServingState.STARTING, running_since=None, is_healthy=None)
    assert not plan(deployed(server("a", 1), server("b", 1), starting), NOW)


def test_an_old_one_drains_when_a_new_one_is_ready_and_ends_after_its_time() -> None:
    steps = plan(deployed(server("a", 1), server("b", 1), server("c", 2)), NOW)
    assert steps.servers["a"].state is ServingState.DRAINING
    assert steps.cancel == {}
    later = plan(deployed(steps.servers["a"], server("b", 1), server("c", 2)), NOW + timedelta(seconds=5))
    assert list(later.cancel) == ["a"]


def test_going_back_keeps_those_of_the_old_revision_that_run() -> None:
    steps = plan(deployed(server("a", 1), server("b", 2), wanted=1), NOW)
    assert steps.start == 1
    assert "a" not in steps.servers


def test_waiting_in_the_queue_is_no_failure() -> None:
    waits = server(
        "c", 2, ServingState.STARTING, running_since=None, is_healthy=None, created_at=NOW - timedelta(days=2)
    )
    steps = plan(deployed(server("a", 1), server("b", 1), waits), NOW)
    assert steps.deployed.revision(2).failures == 0
    assert not steps


def test_back_off_doubles_and_has_an_end() -> None:
    assert [backoff(failures).total_seconds() for failures in (1, 2, 3, 20, 10_000)] == [1, 2, 4, 300, 300]


def test_what_starts_is_looked_at_again_soon_and_then_ever_more_seldom() -> None:
    def queried(seconds: float) -> float | None:
        begun = NOW - timedelta(seconds=seconds)
        starting = server("a", 2, ServingState.STARTING, created_at=begun, running_since=begun, is_healthy=False)
        steps = plan(deployed(starting, replicas=1), NOW)
        return None if steps.recheck_at is None else (steps.recheck_at - NOW).total_seconds()

    assert [queried(seconds) for seconds in (0, 1, 5)] == [0.15, 0.15, 0.5]
    assert queried(9.95) == pytest.approx(0.995)
    waits = server("a", 2, ServingState.STARTING, created_at=NOW, running_since=None, is_healthy=None)
    assert plan(deployed(waits, replicas=1), NOW).recheck_at == NOW + timedelta(seconds=0.15)
    # Who has waited for long is found by the control loop's own rounds.
    waits = server("a", 2, ServingState.STARTING, created_at=NOW - TEN, running_since=None, is_healthy=None)
    assert plan(deployed(waits, replicas=1), NOW).recheck_at is None


def test_what_drains_and_what_ends_is_looked_at_when_it_is_time() -> None:
    drains = server("a", 1, ServingState.DRAINING, draining_at=NOW - timedelta(seconds=2))
    assert plan(deployed(drains, server("c", 2), replicas=1), NOW).recheck_at == NOW + timedelta(seconds=3)
    ends = server("a", 1, ServingState.DRAINING, draining_at=NOW - timedelta(seconds=5), is_cancelled=True)
    assert plan(deployed(ends, server("c", 2), replicas=1), NOW).recheck_at == NOW + timedelta(seconds=0.15)


def test_a_revision_that_is_gone_back_to_and_does_not_get_ready_again_is_taken_back() -> None:
    back = DeployedModel(
        DeploymentState.ACTIVE,
        2,
        1,
        2,
        (revision(1, stable_at=NOW, failures=3, failed_at=NOW), revision(2, stable_at=NOW)),
        (server("a", 2), server("b", 2)),
    )
    steps = plan(back, NOW)
    assert (steps.deployed.target_revision, steps.deployed.stable_revision, steps.start, steps.servers) == (2, 2, 0, {})
    assert steps.deployed.revision(1).failure_reason.startswith(
        "Revision 1 did not get ready again, so revision 2 serves on"
    )
