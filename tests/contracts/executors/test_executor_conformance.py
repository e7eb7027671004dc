"""What every driver must do. A new driver adds a bench to conftest.py and passes this file."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from core.domain.errors import ExecutorRefused
from core.domain.ids import AttemptId
from core.domain.jobs.layout import Layout, Ports, ReplicaAddress
from executors.base import ChangesWorlds, ExitCause, Observation, Phase
from tests.contracts.executors.conftest import remove

NO_GRACE = timedelta()
LONG_GRACE = timedelta(minutes=5)
FOREVER = {"run_s": None}
ATTEMPT = AttemptId("att-0123")


def _is_running(observation: Observation) -> bool:
    return observation.phase is Phase.RUNNING


def _has_ended(observation: Observation) -> bool:
    return observation.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.LOST)


@pytest.fixture
def behaves(bench):
    """An order whose replica does what the keywords say."""
    from dataclasses import fields

    kind = type(bench.order.__defaults__[0])
    names = {field.name for field in fields(kind)}

    def make(**keywords):
        behaviour = kind(**{name: keywords.pop(name) for name in list(keywords) if name in names})
        return bench.order(behaviour, **keywords)

    return make


def test_a_node_that_is_ready_offers_cpu_and_memory(bench):
    nodes = bench.executor.nodes()
    assert any(node.is_ready for node in nodes)
    assert all(node.allocatable.cpu_milli > 0 and node.allocatable.memory_bytes > 0 for node in nodes if node.is_ready)
    assert len({node.name for node in nodes}) == len(nodes)


def test_every_replica_gets_a_host_and_ports_of_its_own(bench):
    node = bench.executor.nodes()[0].name
    layout = Layout(tuple(ReplicaAddress("worker", index, "", Ports(), node) for index in range(3)))
    first = bench.executor.assign_addresses(layout, frozenset(), ATTEMPT)
    places = {(r.host, port) for r in first.replicas for port in _ports(Layout((r,)))}
    assert len(places) == 12
    assert all(replica.host for replica in first.replicas)
    assert [(r.role, r.index, r.node) for r in first.replicas] == [(r.role, r.index, r.node) for r in layout.replicas]


def test_ports_of_live_attempts_and_of_the_one_before_are_not_given_again(bench):
    if not bench.executor.shares_hosts:
        pytest.skip("each attempt of this driver has hosts of its own")
    node = bench.executor.nodes()[0].name
    layout = Layout((ReplicaAddress("worker", 0, "", Ports(), node),))
    first = _ports(bench.executor.assign_addresses(layout, frozenset(), ATTEMPT))
    blocked = frozenset(range(max(first) + 1, max(first) + 40))
    second = _ports(bench.executor.assign_addresses(layout, blocked, ATTEMPT))
    assert not set(second) & (set(first) | blocked)
    third = _ports(bench.another().assign_addresses(layout, frozenset(), ATTEMPT))
    assert not set(third) & (set(first) | set(second))


def test_a_command_that_ends_with_0_succeeds(bench, behaves):
    order = behaves()
    bench.executor.create(order)
    observation = bench.until(order, _has_ended)
    assert observation.key == order.key
    assert observation.phase is Phase.SUCCEEDED
    assert observation.exit is not None
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.EXITED, 0)


def test_a_command_that_ends_with_an_error_fails_with_its_code_and_a_sentence(bench, behaves):
    order = behaves(exit_code=3)
    bench.executor.create(order)
    observation = bench.until(order, _has_ended)
    assert observation.phase is Phase.FAILED
    assert observation.exit is not None
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.EXITED, 3)
    assert observation.exit.sentence.endswith(".")
    assert observation.exit.at.tzinfo is not None


def test_a_running_replica_says_since_when_and_has_no_exit(bench, behaves):
    order = behaves(**FOREVER)
    bench.executor.create(order)
    observation = bench.until(order, _is_running)
    assert observation.started_at is not None
    assert observation.started_at.tzinfo is not None
    assert observation.exit is None
    json.dumps(dict(observation.facts))


def test_it_is_seen_as_soon_as_create_returns(bench, behaves):
    order = behaves(**FOREVER)
    bench.executor.create(order)
    (observation,) = bench.executor.observe(order.key.attempt_id)
    assert observation.phase in (Phase.PENDING, Phase.RUNNING)
    assert observation.detail or observation.phase is Phase.RUNNING


def test_creating_twice_starts_it_once(bench, behaves):
    order = behaves(**FOREVER)
    bench.executor.create(order)
    bench.until(order, _is_running)
    bench.executor.create(order)
    bench.another().create(order)
    assert _starts_at_least_one(bench, order) == 1


def test_creating_again_after_the_end_starts_nothing(bench, behaves):
    order = behaves()
    bench.executor.create(order)
    before = bench.until(order, _has_ended)
    bench.executor.create(order)
    assert bench.until(order, _has_ended) == before
    assert bench.starts(order) == 1


def test_creators_that_race_start_it_once(bench, behaves):
    order = behaves(**FOREVER)
    errors = []

    def create(executor):
        try:
            executor.create(order)
        except Exception as error:  # noqa: BLE001 - a thread's error belongs to the test
            errors.append(error)

    threads = [threading.Thread(target=create, args=(bench.another(),)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert _starts_at_least_one(bench, order) == 1


def test_nothing_is_seen_of_an_attempt_that_was_never_created(bench):
    assert list(bench.executor.observe(AttemptId("att-none"))) == []


def test_the_newest_generation_is_seen(bench, behaves):
    first = behaves(exit_code=1)
    bench.executor.create(first)
    bench.until(first, _has_ended)
    second = behaves(attempt=first.key.attempt_id, generation=2, **FOREVER)
    bench.executor.create(second)
    (observation,) = bench.executor.observe(first.key.attempt_id)
    assert observation.key.generation == 2


def test_all_replicas_of_the_attempt_and_no_others_are_seen(bench, behaves):
    item = behaves(role="chief", **FOREVER)
    two = behaves(role="parameter-server", index=1, attempt=item.key.attempt_id, **FOREVER)
    other = behaves(database_id="0123456789abcdef", **FOREVER)
    for order in (item, two, other):
        bench.executor.create(order)
    assert {observation.key for observation in bench.executor.observe(item.key.attempt_id)} == {item.key, two.key}
    holding = bench.executor.attempts()
    assert holding[item.key.attempt_id] == ""
    # An engine of one platform need not record their database.
    is_shared = "plain processes" not in bench.capabilities
    assert holding[other.key.attempt_id] == ("0123456789abcdef" if is_shared else "")


def test_stop_ends_it_and_says_that_we_requested(bench, behaves):
    order = behaves(**FOREVER)
    bench.executor.create(order)
    bench.until(order, _is_running)
    bench.executor.stop(order.key, grace=LONG_GRACE)
    observation = bench.until(order, _has_ended)
    assert observation.phase is Phase.FAILED
    assert observation.exit is not None
    assert observation.exit.cause is ExitCause.STOPPED


def test_what_does_not_hear_sigterm_is_killed_after_the_grace(bench, behaves):
    order = behaves(hears_term=False, **FOREVER)
    bench.executor.create(order)
    _starts_at_least_one(bench, order)
    bench.executor.stop(order.key, grace=timedelta(milliseconds=200))
    observation = bench.until(order, _has_ended)
    assert observation.exit is not None
    assert (observation.exit.cause, observation.exit.exit_code) == (ExitCause.STOPPED, 137)


def test_a_shorter_grace_shortens_it(bench, behaves):
    order = behaves(hears_term=False, **FOREVER)
    bench.executor.create(order)
    _starts_at_least_one(bench, order)
    bench.executor.stop(order.key, grace=LONG_GRACE)
    (observation,) = bench.executor.observe(order.key.attempt_id)
    assert observation.phase is Phase.RUNNING
    bench.another().stop(order.key, grace=timedelta(milliseconds=100))
    assert bench.until(order, _has_ended).exit is not None


def test_stopping_what_is_unknown_or_over_is_no_error(bench, behaves):
    order = behaves(exit_code=3)
    bench.executor.stop(order.key, grace=NO_GRACE)
    bench.executor.create(order)
    before = bench.until(order, _has_ended)
    bench.executor.stop(order.key, grace=NO_GRACE)
    assert bench.until(order, _has_ended) == before


def test_remove_kills_and_forgets_and_may_be_repeated(bench, behaves):
    order = behaves(hears_term=False, **FOREVER)
    bench.executor.create(order)
    _starts_at_least_one(bench, order)
    for executor in (bench.executor, bench.another(), bench.executor):
        remove(executor, order.key.attempt_id)
        assert list(executor.observe(order.key.attempt_id)) == []
        assert order.key.attempt_id not in executor.attempts()


def test_a_late_create_of_a_removed_attempt_starts_nothing(bench, behaves):
    order = behaves()
    bench.executor.create(order)
    bench.until(order, _has_ended)
    remove(bench.executor, order.key.attempt_id)
    with pytest.raises(ExecutorRefused):
        bench.executor.create(order)
    with pytest.raises(ExecutorRefused):
        bench.another().create(replace(order, key=replace(order.key, generation=2)))
    assert order.key.attempt_id not in bench.executor.attempts()
    assert bench.starts(order) == 1


def test_another_control_plane_adopts_what_runs(bench, behaves):
    order = behaves(**FOREVER)
    bench.executor.create(order)
    bench.until(order, _is_running)
    other = bench.another()
    (observation,) = other.observe(order.key.attempt_id)
    assert observation.phase is Phase.RUNNING
    other.stop(order.key, grace=NO_GRACE)
    assert bench.until(order, _has_ended).exit is not None


@pytest.fixture
def changes_worlds(bench):
    if not isinstance(bench.executor, ChangesWorlds):
        pytest.skip("this driver does not reach a replica that runs: a gang on it keeps the world that it began in")


@pytest.mark.usefixtures("changes_worlds")
def test_a_running_replica_goes_to_the_newest_world_that_it_is_reported(bench, behaves):
    order = behaves(world=1, **FOREVER)
    bench.executor.create(order)
    observation = bench.until(order, _is_running)
    assert observation.facts["world"] == 1
    for executor in (bench.executor, bench.another()):
        executor.change_world(replace(order, world=3))
    bench.until(order, lambda observation: observation.facts.get("world") == 3 and observation.phase is Phase.RUNNING)
    bench.executor.change_world(replace(order, world=2))
    bench.executor.change_world(replace(order, world=4))
    worlds = []
    bench.until(order, lambda observation: (worlds.append(observation.facts["world"]) or worlds[-1]) == 4)
    assert set(worlds) <= {3, 4}
    bench.executor.stop(order.key, grace=LONG_GRACE)
    assert bench.until(order, _has_ended).exit.cause is ExitCause.STOPPED


@pytest.mark.usefixtures("changes_worlds")
def test_one_that_joins_waits_for_its_world(bench, behaves):
    order = behaves(world=0)
    bench.executor.create(order)
    observation = bench.until(order, lambda observation: observation.facts.get("is_ready"))
    assert (observation.phase, observation.facts["world"]) == (Phase.PENDING, 0)
    bench.another().change_world(replace(order, world=2))
    observation = bench.until(order, _has_ended)
    assert observation.phase is Phase.SUCCEEDED
    assert bench.starts(order) == 1


@pytest.mark.usefixtures("changes_worlds")
def test_each_world_has_ports_of_its_own(bench):
    node = bench.executor.nodes()[0].name
    layout = Layout(tuple(ReplicaAddress("worker", index, "", Ports(), node) for index in range(2)))
    worlds = [bench.executor.assign_addresses(layout, frozenset(), ATTEMPT, world=world) for world in (1, 2, 3)]
    first, second, third = (
        {(r.host, port) for r in world.replicas for port in _ports(Layout((r,)))} for world in worlds
    )
    assert len(first) == len(second) == len(third) == 8
    assert not first & second
    assert not third & (first | second)


@pytest.mark.usefixtures("changes_worlds")
def test_one_that_is_given_up_ends_and_another_takes_its_name(bench, behaves):
    order = behaves(world=1, hears_term=False, **FOREVER)
    bench.executor.create(order)
    _starts_at_least_one(bench, order)
    for executor in (bench.executor, bench.another(), bench.executor):
        executor.kill(order.key)
    follower = behaves(attempt=order.key.attempt_id, generation=2, world=0)
    bench.executor.create(follower)
    bench.until(follower, lambda observation: observation.key.generation == 2 and observation.facts.get("is_ready"))
    bench.executor.kill(order.key)
    bench.executor.change_world(replace(follower, world=2))
    assert bench.until(follower, _has_ended).phase is Phase.SUCCEEDED
    assert bench.starts(follower) == 1


@pytest.mark.usefixtures("changes_worlds")
def test_telling_what_is_unknown_or_over_of_a_world_is_no_error(bench, behaves):
    order = behaves(world=1, exit_code=3)
    bench.executor.change_world(replace(order, world=2))
    assert list(bench.executor.observe(order.key.attempt_id)) == []
    bench.executor.create(order)
    before = bench.until(order, _has_ended)
    bench.executor.change_world(replace(order, world=2))
    bench.executor.kill(order.key)
    assert bench.until(order, _has_ended) == before


def test_an_image_is_refused_with_a_sentence(bench, behaves, needs: Callable[[str], None]):
    needs("plain processes")
    with pytest.raises(ExecutorRefused, match="cannot run image pytorch/pytorch"):
        bench.executor.create(behaves(image="pytorch/pytorch:latest"))


def test_no_command_is_refused_with_a_sentence(bench, behaves, needs: Callable[[str], None]):
    needs("plain processes")
    with pytest.raises(ExecutorRefused, match="set `command`"):
        bench.executor.create(behaves(command=None))


def test_replicas_of_a_lost_node_are_lost(bench, behaves, needs: Callable[[str], None]):
    needs("node loss")
    order = behaves(**FOREVER)
    bench.executor.create(order)
    bench.until(order, _is_running)
    bench.engine.lose_node(order.node)
    assert bench.until(order, _has_ended).phase is Phase.LOST
    assert not any(node.is_ready for node in bench.executor.nodes())


def _ports(layout: Layout) -> list[int]:
    return [port for r in layout.replicas for port in (r.ports.framework, r.ports.torch, r.ports.dmlc, r.ports.gloo)]


def _starts_at_least_one(bench, order) -> int:
    bench.until(order, lambda observation: bench.starts(order) > 0 and observation.phase is not Phase.PENDING)
    return bench.starts(order)
