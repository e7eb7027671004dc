"""What would become of a job that is not submitted yet, and what would start in its place."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import HealthCheck, given, settings

from core.domain.ids import JobId
from core.domain.resources import Gang, Request
from scheduler.planning import QueuedGang, Snapshot, plan
from scheduler.planning.forecast import Forecast, Option, OptionCode, forecast
from tests.properties.planner_worlds import NOW, any_snapshots, gangs
from tests.unit.planning.test_reasons import GIB, gang, job, node, runs


def asked(wanted: Gang, *nodes, queued=(), running=(), limit: float | None = None) -> Forecast:
    return forecast(Snapshot(NOW, nodes, tuple(queued), tuple(running)), job("me", wanted, limit=limit))


def told(found: Forecast) -> dict[OptionCode, tuple[object, str]]:
    return {option.code: (option.value, option.sentence) for option in found.options}


def test_where_it_would_start_is_what_the_plan_says() -> None:
    found = asked(gang(3, 2), node("a", free=4), node("b", free=2))
    assert [(p.role, p.index, p.node) for p in found.placements] == [
        ("worker", 0, "a"), ("worker", 1, "a"), ("worker", 2, "b"),
    ]  # fmt: skip
    assert found.reason is None
    assert not found.options


def test_one_that_would_wait_is_told_why_its_place_and_what_would_start_at_once() -> None:
    found = asked(
        gang(4, 4, "H100", topology="rack", topology_required=True),
        node("a", free=6, labels={"topology/rack": "x"}),
        node("b", free=3, labels={"topology/rack": "y"}),
        *(node(name, model="A100", labels={"topology/rack": "z"}) for name in ("c", "d")),
        queued=[job("other", gang(8, 8, "H100"), age=9)],
        running=[runs("r", 2, "a", 20), runs("s", 5, "b", 20)],
    )
    assert not found.placements
    assert found.reason is not None
    assert found.position == 2
    assert told(found) == {
        OptionCode.FEWER_REPLICAS: (1, "With 1 worker instead of 4 it would start now, on a."),
        OptionCode.FEWER_GPUS: (1, "With 1 GPU of H100 for each worker instead of 4 it would start now, on a."),
        OptionCode.OTHER_MODEL: ("A100", "With GPUs of A100 instead of H100 it would start now, on c and d."),
    }


def test_amounts_labels_and_nearness_are_options_too() -> None:
    big = gang(2, 0, cpu=100_000, memory=8 * GIB)
    assert told(asked(big, node("a"))) == {
        OptionCode.LESS_CPU: (32, "With 32 CPUs for each worker instead of 100 it would start now, on a.")
    }
    small = gang(4, 0, cpu=1000)
    assert told(asked(small, node("a"), queued=[job("first", gang(1, 0, cpu=61_500), age=9)])) == {
        OptionCode.FEWER_REPLICAS: (2, "With 2 workers instead of 4 it would start now, on a."),
        OptionCode.LESS_CPU: ("600m", "With 0.6 CPUs for each worker instead of 1 it would start now, on a."),
    }
    wide = gang(1, 0, cpu=1000, memory=1000 * GIB)
    assert told(asked(wide, node("a"))) == {
        OptionCode.LESS_MEMORY: ("256Gi", "With 256 GiB of memory for its worker instead of 1000 GiB it would start now, on a.")
    }  # fmt: skip
    near = gang(2, 8, topology="node", topology_required=True)
    assert told(asked(near, node("a"), node("b")))[OptionCode.ANYWHERE] == (
        None, "With replicas on more than one node it would start now, on a and b.",
    )  # fmt: skip
    picky = gang(1, 1, node_selector=(("pool", "x"),))
    assert told(asked(picky, node("a"))) == {
        OptionCode.ANY_NODE: (None, "With nodes that need not carry pool=x it would start now, on a.")
    }


def test_nothing_is_told_where_nothing_would_start() -> None:
    found = asked(gang(4, 4), node("a", free=0), running=[runs("r", 8, "a", None)])
    assert found.reason is not None
    assert found.options == ()


def test_what_is_kept_for_a_job_before_it_is_no_room_for_an_option() -> None:
    first = job("first", gang(1, 8), age=9)
    nodes, running = (node("a", free=4),), [runs("r", 4, "a", 60)]
    assert asked(gang(2, 4), *nodes, queued=[first], running=running).options == ()
    short = asked(gang(2, 4), *nodes, queued=[first], running=running, limit=60)
    assert told(short)[OptionCode.FEWER_REPLICAS][0] == 1


def changed(wanted: Gang, option: Option) -> Gang:
    """The gang with what the option says, as a user would write it."""

    def one(request: Request) -> Request:
        match option.field:
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


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_snapshots(), gangs())
def test_what_is_said_to_start_is_started_by_the_plan(snapshot: Snapshot, wanted: Gang) -> None:
    at = NOW + timedelta(seconds=1)
    me = QueuedGang(JobId("me"), "me", "p", "u", 50, at, wanted, wanted.shape(), 60.0)
    for option in forecast(snapshot, me).options:
        other = changed(wanted, option)
        twin = replace(me, gang=other, shape=other.shape())
        made = plan(replace(snapshot, queued=(*snapshot.queued, twin)))
        assert any(start.job_id == me.job_id for start in made.starts), option
