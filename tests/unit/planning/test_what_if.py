"""What would become of a job that is not submitted yet, and what would start in its place."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Gang, ResourceRequest
from scheduler.planning import Estimate, QueuedGang, Snapshot, WaitReasonCode, plan
from scheduler.planning.forecast.start_times import StartCode, forecast_starts
from scheduler.planning.forecast.what_if import Alternative, AlternativeCode, Forecast, changed_cluster, forecast
from tests.properties.planner_worlds import NOW, any_snapshots, gangs
from tests.unit.planning.test_reasons import GIB, gang, job, node, runs


def requested(wanted: Gang, *nodes, queued=(), running=(), limit: float | None = None) -> Forecast:
    return forecast(Snapshot(NOW, nodes, tuple(queued), tuple(running)), job("me", wanted, limit=limit))


def reported(found: Forecast) -> dict[AlternativeCode, tuple[object, str]]:
    return {option.code: (option.value, option.sentence) for option in found.options}


def test_where_it_would_start_is_what_the_plan_says() -> None:
    found = requested(gang(3, 2), node("a", free=4), node("b", free=2))
    assert [(p.role, p.index, p.node) for p in found.placements] == [
        ("worker", 0, "a"), ("worker", 1, "a"), ("worker", 2, "b"),
    ]  # fmt: skip
    assert found.reason is None
    assert not found.options


def test_a_waiting_job_s_forecast_has_reason_position_and_alternatives() -> None:
    found = requested(
        gang(4, 4, "H100", topology="rack", topology_required=True),
        node("a", free=6, labels={"topology/rack": "x"}),
        node("b", free=3, labels={"topology/rack": "y"}),
        *(node(name, model="A100", labels={"topology/rack": "z"}) for name in ("c", "d")),
        queued=[job("other", gang(8, 8, "H100"), age=9)],
        running=[runs("r", 2, "a", 20), runs("s", 5, "b", 20)],
    )
    assert not found.placements
    assert found.reason is not None
    assert found.position is None  # no rack is large enough, so it waits for nobody
    assert reported(found) == {
        AlternativeCode.FEWER_REPLICAS: (1, "With 1 worker instead of 4 it would start now, on a."),
        AlternativeCode.FEWER_GPUS: (1, "With 1 GPU of H100 for each worker instead of 4 it would start now, on a."),
        AlternativeCode.OTHER_MODEL: ("A100", "With GPUs of A100 instead of H100 it would start now, on c and d."),
    }


def test_a_what_if_forecast_preempts_nothing_and_names_the_victims() -> None:
    since = {"started_at": NOW - timedelta(hours=1)}
    running = [replace(runs(name, 8, on, None), **since) for name, on in (("r", "a"), ("s", "b"))]
    nodes = (node("a", free=0), node("b", free=0))
    for members, names in ((1, {"r"}), (2, {"r", "s"})):
        mine = replace(job("me", gang(members, 8)), priority=90)
        found = forecast(Snapshot(NOW, nodes, (), tuple(running)), mine)
        assert {victim.job_id for victim in found.victims} == names
        assert all(
            one.sentence.startswith(f"job {one.job_id} would be stopped for job me of larger") for one in found.victims
        )
        assert found.reason is not None
        assert "would be stopped for it" in found.reason.sentence
        assert "being stopped" not in found.reason.sentence


def test_amounts_labels_and_nearness_are_options_too() -> None:
    big = gang(2, 0, cpu=100_000, memory=8 * GIB)
    assert reported(requested(big, node("a"))) == {
        AlternativeCode.LESS_CPU: (32, "With 32 CPUs for each worker instead of 100 it would start now, on a.")
    }
    small = gang(4, 0, cpu=1000)
    assert reported(requested(small, node("a"), queued=[job("first", gang(1, 0, cpu=61_500), age=9)])) == {
        AlternativeCode.FEWER_REPLICAS: (2, "With 2 workers instead of 4 it would start now, on a."),
        AlternativeCode.LESS_CPU: ("600m", "With 0.6 CPUs for each worker instead of 1 it would start now, on a."),
    }
    wide = gang(1, 0, cpu=1000, memory=1000 * GIB)
    assert reported(requested(wide, node("a"))) == {
        AlternativeCode.LESS_MEMORY: (
            "256Gi",
            "With 256 GiB of memory for its worker instead of 1000 GiB it would start now, on a.",
        )
    }  # fmt: skip
    near = gang(2, 8, topology="node", topology_required=True)
    assert reported(requested(near, node("a"), node("b")))[AlternativeCode.ANYWHERE] == (
        None, "With replicas on more than one node it would start now, on a and b.",
    )  # fmt: skip
    picky = gang(1, 1, node_selector=(("pool", "x"),))
    assert reported(requested(picky, node("a"))) == {
        AlternativeCode.ANY_NODE: (None, "With nodes that need not carry pool=x it would start now, on a.")
    }


def test_no_alternative_is_offered_where_none_would_start() -> None:
    found = requested(gang(4, 4), node("a", free=0), running=[runs("r", 8, "a", None)])
    assert found.reason is not None
    assert found.options == ()


def test_alternatives_do_not_use_room_reserved_for_a_job_ahead() -> None:
    first = job("first", gang(1, 8), age=9)
    nodes, running = (node("a", free=4),), [runs("r", 4, "a", 60)]
    assert requested(gang(2, 4), *nodes, queued=[first], running=running).options == ()
    short = requested(gang(2, 4), *nodes, queued=[first], running=running, limit=60)
    assert reported(short)[AlternativeCode.FEWER_REPLICAS][0] == 1


def changed(wanted: Gang, option: Alternative) -> Gang:
    """The gang with what the option says, as a user would write it."""

    def one(request: ResourceRequest) -> ResourceRequest:
        match option.field:
            case "gpus" if option.code is AlternativeCode.PART_OF_GPU:
                return replace(request, gpu_count=0, gpu_milli=round(1000 * option.value))
            case "gpus":
                return replace(request, gpu_count=option.value)
            case "gpu_type":
                return replace(request, gpu_models=(option.value,))
        raise AssertionError(option)

    match option.field:
        case "topology":
            return replace(wanted, topology=None, topology_required=False)
        case "node_selector":
            return replace(wanted, node_selector=())
    roles = [
        role
        if role.role not in option.roles
        else replace(role, replicas=option.value)
        if option.field == "replicas"
        else replace(role, request=one(role.request))
        for role in wanted.roles
    ]
    return replace(wanted, roles=tuple(roles))


def ends(view, early: float, likely: float, late: float):
    return replace(view, estimate=Estimate(likely * 60, early * 60, late * 60, "learnt"))


def test_the_forecast_has_the_expected_start_and_changes_that_start_sooner() -> None:
    nodes = (node("a", free=0), node("b", free=0), node("c", free=0, model="A100"))
    running = [ends(runs(name, 8, on, None), *when) for name, on, when in (
        ("r", "a", (20, 30, 60)), ("s", "b", (200, 300, 600)), ("t", "c", (5, 10, 20)))]  # fmt: skip
    found = requested(gang(2, 8, "H100"), *nodes, running=running)
    assert found.start is not None
    assert found.start.sentence == "probably at about 17:00 UTC, between 15:20 UTC and 22:00 UTC"
    assert found.position == 1
    assert [option.sentence for option in found.later] == [
        "With 4 GPUs of H100 for each worker instead of 8 it would probably start at about 12:30 UTC.",
        "With 1 worker instead of 2 it would probably start at about 12:30 UTC.",
    ]
    one = requested(gang(1, 8, "H100"), *nodes, running=running)
    assert [(option.code, option.value) for option in one.later] == [(AlternativeCode.OTHER_MODEL, "A100")]


def test_what_if_the_cluster_were_another_one() -> None:
    me = job("me", gang(2, 8, "H100"))
    snapshot = Snapshot(NOW, (node("a", free=0), node("b", free=8)), (), (runs("r", 8, "a", None),))
    assert forecast(snapshot, me).reason is not None
    more = changed_cluster(snapshot, more_nodes=1, like=NodeId("a"))
    assert {p.node for p in forecast(more, me).placements} == {"a-more-1", "b"}
    less = changed_cluster(more, without=[NodeId("b")])
    assert forecast(less, me).reason is not None
    with pytest.raises(ValueError, match="like: there is no node x"):
        changed_cluster(snapshot, more_nodes=1, like=NodeId("x"))
    with pytest.raises(ValueError, match="without: there is no node x"):
        changed_cluster(snapshot, without=[NodeId("x")])


def test_without_the_node_that_alone_could_run_it_it_could_never_start() -> None:
    both, one = [NodeId("a"), NodeId("b")], [NodeId("a")]
    snapshot = Snapshot(NOW, (node("a"), node("b", 2, model="A100")), (), (runs("r", 4, "a", None),))
    found = forecast(changed_cluster(snapshot, without=one), job("me", gang(1, 8)), left_out=one)
    assert found.reason is not None
    assert found.start is not None
    assert (found.reason.code, found.position, found.start.code) == (WaitReasonCode.NEVER_FITS, None, StartCode.NEVER)
    none = forecast(changed_cluster(snapshot, without=both), job("me", gang(1, 1)), left_out=both)
    assert none.reason is not None
    assert none.start is not None
    assert (none.reason.code, none.position, none.start.code) == (WaitReasonCode.NO_NODES, None, StartCode.NEVER)
    assert none.reason.sentence == "without a and b there is no node at all, so no job could ever run"
    assert none.reason.numbers["is_never"]
    # Where there is no node since none has come yet, nobody knows.
    assert forecast(Snapshot(NOW, (), ()), job("me", gang(1, 1))).start.code is StartCode.NOT_KNOWN


def test_a_job_s_own_forecast_does_not_mention_itself_by_name() -> None:
    me = job("hog", gang(1, 8))  # who holds the node is not known here
    found = forecast_starts(Snapshot(NOW, (node("a", free=0),), (me,))).forecast_of(me.job_id)
    assert found is not None
    assert found.code is StartCode.NOT_KNOWN
    assert "what becomes free on a is kept for it" in found.sentence
    assert "hog" not in found.sentence


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_snapshots(), gangs())
def test_a_forecast_start_is_started_by_the_plan(snapshot: Snapshot, wanted: Gang) -> None:
    at = NOW + timedelta(seconds=1)
    me = QueuedGang(JobId("me"), "me", "p", "u", 50, at, wanted, wanted.shape(), 60.0)
    for option in forecast(snapshot, me).options:
        other = changed(wanted, option)
        twin = replace(me, gang=other, shape=other.shape())
        made = plan(replace(snapshot, queued=(*snapshot.queued, twin)))
        assert any(start.job_id == me.job_id for start in made.starts), option
