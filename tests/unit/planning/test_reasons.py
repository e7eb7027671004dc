"""The words a user reads while a job waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from trainmaster.spec import parse_spec

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest, gang_of
from scheduler.planning import (
    Account,
    Estimate,
    NodeSnapshot,
    Policy,
    QueuedGang,
    QueueOrder,
    Reason,
    RunningGang,
    Snapshot,
    WaitReasonCode,
    plan,
)
from scheduler.planning.explain.queue_position import explain_position

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GIB = 2**30

BY_SERVICE = Policy(order=QueueOrder.ATTAINED_SERVICE, time_slice_s=None)


def node(name: str, gpus: int = 8, free: int | None = None, model: str = "H100", **more) -> NodeSnapshot:
    whole = Amounts(64_000, 256 * GIB, {model: gpus} if gpus else {})
    left = whole if free is None else replace(whole, gpus={model: free})
    return NodeSnapshot(NodeId(name), more.pop("labels", {}), whole, left, **more)


def gang(
    replicas: int, gpus: int, *models: str, role: str = "worker", cpu: int = 100, memory: int = 2**27, **more
) -> Gang:
    return Gang((GangRole(role, replicas, ResourceRequest(cpu, memory, gpus, models)),), **more)


def job(name: str, wanted: Gang, *, age: int = 0, limit: float | None = None) -> QueuedGang:
    at = NOW - timedelta(seconds=age)
    return QueuedGang(JobId(name), name, "p", "u", 50, at, wanted, wanted.shape(), limit)


def runs(name: str, gpus: int, on: str, minutes: float | None) -> RunningGang:
    end = None if minutes is None else NOW + timedelta(minutes=minutes)
    return RunningGang(JobId(name), name, "p", 50, gang(1, gpus), (("worker", NodeId(on)),), end)


def why(nodes, wanted: Gang, running=(), others=()) -> Reason:
    made = plan(Snapshot(NOW, tuple(nodes), (job("me", wanted), *others), tuple(running), policy=BY_SERVICE))
    return made.waits[JobId("me")]


def test_the_sentence_names_the_largest_hole_and_who_holds_the_rest_until_when() -> None:
    nodes = [node("gpu-07", free=6), node("gpu-08", free=3)]
    running = [runs("sweep-31", 2, "gpu-07", 140), runs("other", 5, "gpu-08", None)]
    reason = why(nodes, gang(2, 8, "H100"), running)
    assert reason.code is WaitReasonCode.NO_ROOM
    assert reason.sentence.startswith(
        "needs 8 GPUs of H100 on one node for each of 2 workers; the largest hole is 6, on gpu-07; "
        "2 of its GPUs are held by job sweep-31 until about 14:20 UTC"
    )
    assert reason.numbers["largest_hole"] == 6
    assert reason.numbers["node"] == "gpu-07"
    assert reason.numbers["held_by"] == ["sweep-31"]
    assert reason.numbers["until"] == "2026-11-21T14:20:00+00:00"


def test_another_day_has_its_date_and_an_unknown_end_is_named_so() -> None:
    tomorrow = why([node("a", free=0)], gang(1, 8), [runs("long", 8, "a", 60 * 24)])
    assert "8 of the GPUs of a are held by job long until about 2026-11-22 12:00 UTC" in tomorrow.sentence
    unknown = why([node("a", free=0)], gang(1, 8), [runs("long", 8, "a", None)])
    assert "none is free; 8 of the GPUs of a are held by job long, whose end is not known" in unknown.sentence
    single = why([node("a", free=7)], gang(1, 8), [runs("long", 1, "a", None)])
    assert "the largest hole is 7, on a; 1 of its GPUs is held by job long" in single.sentence
    overdue = why([node("a", free=0)], gang(1, 8), [runs("long", 8, "a", -1)])
    assert "held by job long, which should end any moment" in overdue.sentence


def test_several_holders_are_counted_and_only_as_many_named_as_must_end() -> None:
    running = [runs("a", 1, "n", 10), runs("b", 1, "n", 20), runs("c", 2, "n", 30), runs("d", 1, "n", None)]
    reason = why([node("n", free=3)], gang(1, 7), running)
    assert "4 of its GPUs are held by jobs a, b and 1 more until about 12:30 UTC" in reason.sentence


def test_the_first_blocked_job_s_reason_has_the_reserved_nodes_and_start() -> None:
    reason = why([node("n", free=0)], gang(1, 8), [runs("x", 8, "n", 45)])
    assert reason.sentence.endswith("job me, the first that asks for this, is to start on n by about 12:45 UTC")
    assert reason.numbers["expected_start"] == "2026-11-21T12:45:00+00:00"
    assert reason.numbers["on"] == ["n"]


def test_a_job_that_would_delay_another_is_named_that_job_and_how_to_run_first() -> None:
    first = job("big", gang(1, 8), age=10)
    reason = why([node("n", free=4)], gang(1, 2), [runs("x", 4, "n", 45)], [first])
    assert reason.code is WaitReasonCode.RESERVED
    assert reason.sentence == (
        "would fit now, but it might delay job big, which is before it in the queue and is to start on n by "
        "about 12:45 UTC; with a max_run_time that surely ends before that it could run first"
    )
    unknown = why([node("n", free=4)], gang(1, 2), [runs("x", 4, "n", None)], [first])
    assert "when it can start is not known since jobs there state no max_run_time" in unknown.sentence


def test_a_reason_that_still_holds_reads_the_same_a_moment_later() -> None:
    # Every tick writes changed reasons; a span such as "in 35 minutes" would change all the time.
    jobs = (job("big", gang(1, 8), age=10), job("small", gang(1, 2)))
    snapshot = Snapshot(NOW, (node("n", free=4),), jobs, (runs("x", 4, "n", 45),))
    later = replace(snapshot, now=NOW + timedelta(minutes=7))
    assert plan(snapshot).waits == plan(later).waits


def test_too_few_members_fit() -> None:
    reason = why([node("a"), node("b", free=0)], gang(2, 8), [runs("x", 8, "b", None)])
    assert reason.sentence.startswith("needs 8 GPUs on one node for each of 2 workers; there is room for 1 of them now")
    assert reason.numbers["fits_now"] == 1


def test_cpus_and_memory_bind_too() -> None:
    full = replace(node("n"), free=Amounts(12_000, 256 * GIB, {"H100": 8}))
    beside = RunningGang(
        JobId("x"), "x", "p", 50, gang(1, 0, cpu=52_000), (("worker", NodeId("n")),), NOW + timedelta(minutes=5)
    )
    cpu = why([full], gang(1, 0, cpu=32_000), [beside])
    assert cpu.sentence.startswith(
        "needs 32 CPUs on one node for its worker; the most that is free is 12 CPUs, on n next to job x until "
        "about 12:05 UTC"
    )
    both = why([full], gang(1, 1, cpu=32_000), [beside])
    assert both.sentence.startswith(
        "needs 1 GPU and 32 CPUs together on one node for its worker; n comes nearest with 8 GPUs, 12 CPUs and "
        "256 GiB of memory free"
    )
    memory = why([replace(full, free=Amounts(64_000, GIB, {}))], gang(1, 0, memory=4 * GIB, role="chief"))
    assert (
        "needs 4 GiB of memory on one node for its chief; the most that is free is 1 GiB of memory, on n"
        in memory.sentence
    )


def test_a_binding_default_is_named_as_unstated() -> None:
    # 10 GiB hold 80 times the memory that is set aside for who states none, and CPUs for ten thousand.
    small = NodeSnapshot(NodeId("n"), {}, Amounts(10_000, 10 * GIB, {}), Amounts(10_000, 10 * GIB, {}))
    never = why([small], gang(200, 0, cpu=1))
    assert never.sentence == (
        "needs 0.001 CPUs and 128 MiB of memory (the default where none is stated) for each of 200 workers, and even "
        "empty the cluster holds only 80 of them. Ask for at most 80 replicas, or for less memory each (state `memory`)"
    )
    assert never.numbers["binding"] == ["memory"]
    stated = why([small], gang(200, 0, cpu=1000, memory=2**20))
    assert "needs 1 CPU and 1 MiB of memory for each" in stated.sentence
    assert stated.sentence.endswith("Ask for at most 10 replicas, or for less cpu each")
    full = replace(small, free=Amounts(10_000, GIB, {}))
    now = why([full], gang(20, 0, cpu=1))
    assert now.sentence.startswith(
        "needs 0.001 CPUs and 128 MiB of memory (the default where none is stated) on one node for each of 20 workers; "
        "there is room for 8 of them now"
    )
    none = why([replace(small, free=Amounts(10_000, 2**26, {}))], gang(1, 0, cpu=1))
    assert none.sentence.startswith(
        "needs 128 MiB of memory (the default where none is stated) on one node for its worker; the most that is free "
        "is 64 MiB of memory"
    )


def test_an_amount_that_is_stated_is_never_called_the_default() -> None:
    nodes = [NodeSnapshot(NodeId("n"), {}, Amounts(1000, 2**40, {}), Amounts(1000, 2**40, {}))]
    stated = gang_of(parse_spec({"name": "many", "command": "true", "workers": 20, "cpu": "100m", "memory": "1Gi"}))
    assert why(nodes, stated).sentence == (
        "needs 0.1 CPUs and 1 GiB of memory for each of 20 workers, and even empty the cluster holds only 10 of them. "
        "Ask for at most 10 replicas, or for less cpu each"
    )
    assert Gang.from_json(stated.to_json()) == stated
    unstated = gang_of(parse_spec({"name": "many", "command": "true", "workers": 20, "memory": "1Gi"}))
    assert "0.1 CPUs (the default where none is stated) and 1 GiB" in why(nodes, unstated).sentence
    assert unstated.shape() != stated.shape()
    assert unstated.to_json()["roles"][0] == ["worker", 20, 100, 2**30, 0, []]


def test_what_can_never_run_says_what_to_ask_for_instead() -> None:
    nodes = [node("gpu-1"), node("gpu-2")]
    wide = why(nodes, gang(1, 16))
    assert wide.code is WaitReasonCode.NEVER_FITS
    assert wide.sentence == (
        "needs 16 GPUs on one node for its worker, and no node has more than 8 (gpu-1 has). "
        "Ask for at most 8 GPUs per replica, and more replicas"
    )
    cpu = why(nodes, gang(1, 0, cpu=128_000))
    assert cpu.sentence == (
        "needs 128 CPUs on one node for its worker, and no node has more than 64 CPUs (gpu-1 has). "
        "Ask for less cpu per replica"
    )
    many = why(nodes, gang(3, 8))
    assert many.code is WaitReasonCode.TOO_LARGE
    assert "for each of 3 workers, and even empty the cluster holds only 2 of them. Ask for at most 2" in many.sentence
    other = why([*nodes, node("cpu-1", 0)], gang(1, 8, cpu=65_000 // 2, node_selector=(("x", "y"),)))
    assert other.code is WaitReasonCode.NO_MATCHING_NODE
    assert "no node has such a label at all" in other.sentence


def test_a_reason_distinguishes_all_roles_together_from_each_alone() -> None:
    nodes = [node("a", 4), replace(node("b", 0), allocatable=Amounts(128_000, GIB, {}), free=Amounts(128_000, GIB, {}))]
    never = why(nodes, gang(1, 4, cpu=100_000))
    assert never.code is WaitReasonCode.NEVER_FITS
    assert (
        "needs 4 GPUs and 100 CPUs together on one node for its worker, and no node has all of that" in never.sentence
    )
    assert "a comes nearest with 4 GPUs, 64 CPUs and 256 GiB of memory" in never.sentence


def test_a_gpu_model_that_is_not_there() -> None:
    reason = why([node("a"), node("b", model="A100")], gang(1, 1, "H200"))
    assert reason.code is WaitReasonCode.NO_MATCHING_NODE
    assert reason.sentence == (
        "needs 1 GPU of H200 for its worker, and no node has GPUs of H200; there are A100 and H100. "
        "Set gpu_type to one of these"
    )


def test_other_exceeded_resources_are_named_with_missing_gpus() -> None:
    reason = why([node("a", 0)], gang(1, 1, cpu=128_000))
    assert reason.sentence == (
        "needs 1 GPU for its worker, and no node has a GPU. Ask for no GPUs, or add a node. "
        "It also needs 128 CPUs, and no node has more than 64 CPUs (a has): ask for less cpu"
    )
    assert reason.numbers["largest_cpu_milli"] == 64_000


def test_a_reason_names_requested_models_as_written_and_node_models_as_they_are() -> None:
    nodes = [node("a", model="a100-pcie-40gb"), node("b", model="t4")]
    reason = why(nodes, gang(1, 1, "NVIDIA A100-80GB"))
    assert "no node has GPUs of NVIDIA A100-80GB; there are a100-pcie-40gb and t4." in reason.sentence
    full = why([node("a", free=0, model="a100-pcie-40gb")], gang(1, 1, "A100"), [runs("x", 8, "a", None)])
    assert full.code is WaitReasonCode.NO_ROOM
    assert full.sentence.startswith("needs 1 GPU of A100 on one node")


def test_no_node_at_all_and_nodes_that_take_no_work() -> None:
    assert why([], gang(1, 1)).code is WaitReasonCode.NO_NODES
    away = why([node("a", is_schedulable=False, why_not="is cordoned (new disk)"), node("b", 1)], gang(1, 8))
    assert away.code is WaitReasonCode.NO_NODES
    assert "take no new work: a is cordoned (new disk)" in away.sentence


def test_enough_is_free_but_not_inside_one_rack() -> None:
    racks = [{"topology/rack": name} for name in "xxyy"]
    nodes = [node(f"n{n}", free=8 if n in {1, 2} else 0, labels=labels) for n, labels in enumerate(racks)]
    running = [runs("a", 8, "n0", None), runs("b", 8, "n3", None)]
    reason = why(nodes, gang(2, 8, topology="rack", topology_required=True), running)
    assert reason.code is WaitReasonCode.TOPOLOGY
    assert "inside one rack; rack x has room for 1 of its 2 workers" in reason.sentence
    assert why(nodes, gang(3, 8, topology="rack", topology_required=True), running).code is WaitReasonCode.TOO_LARGE


def test_equal_members_under_several_roles_are_named_together() -> None:
    wanted = Gang(
        (GangRole("chief", 1, ResourceRequest(1000, GIB, 8)), GangRole("worker", 2, ResourceRequest(1000, GIB, 8)))
    )
    assert "for each of 3 replicas (chief, worker)" in why([node("a"), node("b", free=4), node("c")], wanted).sentence


def test_all_exceeded_resources_are_named_at_once_with_units() -> None:
    reason = why([node("a"), node("b", gpus=0)], gang(1, 16, cpu=100_000, memory=1024 * GIB))
    assert reason.code is WaitReasonCode.NEVER_FITS
    assert reason.sentence == (
        "needs 16 GPUs, 100 CPUs and 1 TiB of memory on one node for its worker, and no node has more than 8 (a has), "
        "64 CPUs (a has) or 256 GiB of memory (a has). "
        "Ask for at most 8 GPUs, less cpu and less memory per replica, and more replicas"
    )
    assert reason.numbers["short_of"] == ["gpus", "cpu", "memory"]
    assert reason.numbers["largest_cpu_milli"] == 64_000
    assert reason.numbers["largest_memory_bytes"] == 256 * GIB


def test_a_cluster_without_gpus_is_mentioned_once() -> None:
    assert why([node("a", gpus=0)], gang(1, 4)).sentence == (
        "needs 4 GPUs for its worker, and no node has a GPU. Ask for no GPUs, or add a node"
    )


def test_an_estimated_end_is_rounded_and_marked_as_probable_apart_from_stated_ends() -> None:
    guess = Estimate(likely_s=62 * 60, early_s=10 * 60, late_s=5 * 3600)
    learnt = replace(runs("sweep-31", 8, "a", None), estimate=guess)
    reason = why([node("a", free=0)], gang(1, 8), [learnt])
    assert "8 of the GPUs of a are held by job sweep-31, probably until about 13:15 UTC" in reason.sentence
    assert (reason.numbers["until"], reason.numbers["likely_until"]) == (None, "2026-11-21T13:15:00+00:00")
    stated = replace(runs("sweep-31", 8, "a", 30), estimate=guess)
    both = why([node("a", free=0)], gang(1, 8), [stated])
    assert "held by job sweep-31 until about 12:30 UTC" in both.sentence
    assert "likely_until" not in both.numbers
    # A moment later the same estimate reads the same.
    soon = NOW + timedelta(seconds=50)
    later = replace(learnt, estimate=replace(guess, likely_s=guess.likely_s - 50))
    made = plan(Snapshot(soon, (node("a", free=0),), (job("me", gang(1, 8)),), (later,), policy=BY_SERVICE))
    assert made.waits[JobId("me")].sentence == reason.sentence


def test_a_reason_names_a_part_of_a_gpu() -> None:
    def part(milli: int, *models: str) -> Gang:
        return Gang((GangRole("worker", 1, ResourceRequest(100, 2**27, 0, models, milli)),))

    whole = Amounts(64_000, 256 * GIB, {"H100": 2})
    shared = NodeSnapshot(NodeId("a"), {}, whole, replace(whole, gpus={"H100": 0}, shares={"H100": (200, 300)}))
    assert why([shared], part(500, "H100")).sentence.startswith(
        "needs 0.5 GPU of H100 for its worker; the most that is left of one is 0.3, on a"
    )
    full = replace(shared, free=replace(whole, gpus={"H100": 0}))
    assert "nothing is left of any" in why([full], part(500)).sentence
    assert "needs 0.5 GPU for its worker, and no node has a GPU" in why([node("b", gpus=0)], part(500)).sentence


def test_parameter_servers_that_stand_apart_or_spread_are_named_where_that_is_what_binds() -> None:
    def with_servers(count: int, **more) -> Gang:
        ps = GangRole("ps", count, ResourceRequest(100, 2**27, 0, ()))
        return Gang((GangRole("worker", 1, ResourceRequest(100, 2**27, 4, ())), ps), **more)

    two = [node("a"), node("b")]
    full = [runs("other", 8, "b", None)]
    crowded = [node("a"), replace(node("b", free=0), free=Amounts(0, GIB, {"H100": 0}))]
    apart = why(crowded, with_servers(1, servers="apart"), full)
    assert apart.code is WaitReasonCode.NO_ROOM
    assert (
        "needs its parameter servers on nodes without any other of its replicas (`placement: apart`)" in apart.sentence
    )
    assert "there is room for all its 2 replicas now, but not so" in apart.sentence
    never = why(two, with_servers(3, spread_servers=True))
    assert never.code is WaitReasonCode.TOO_LARGE
    assert never.numbers["spread"] is True
    assert (
        "`spread: true` of its parameter servers; without that its 4 replicas fit the empty cluster" in never.sentence
    )


@pytest.mark.parametrize(
    ("gpus", "had_s", "reported"),
    [
        (8, 0.0, "having had no GPU time yet"),
        (8, 20.0, "having had less than a GPU minute"),
        (8, 65.0, "having had 1 GPU minute"),
        (0, 0.0, "not having run yet"),
        (0, 65.0, "having run for 1 minute"),
        (0, 2 * 3600.0, "having run for 2 hours"),
    ],
)
def test_what_a_job_has_had_is_no_gpu_time_where_it_has_no_gpus(gpus: int, had_s: float, reported: str) -> None:
    wanted = gang(1, gpus) if gpus else gang(1, 0, cpu=64_000)
    waits = replace(job("me", wanted), attained_gpu_s=had_s)
    first = replace(job("first", wanted, age=50), priority=100)
    seen = Snapshot(NOW, (node("a", free=8),), (first, waits), policy=BY_SERVICE)
    made = plan(seen)
    assert JobId("me") in made.waits
    assert explain_position(seen, made, JobId("me")).endswith(reported)


def test_why_a_job_stands_where_it_stands_is_counted_without_names() -> None:
    wanted = gang(1, 8)

    def waits(name: str, project: str, user: str, priority: int, age: int, had: float = 0.0) -> QueuedGang:
        return replace(job(name, wanted, age=age), project=project, user=user, priority=priority, attained_gpu_s=had)

    queued = (
        waits("urgent", "p", "ann", 100, 5),
        waits("other", "q", "bob", 50, 50),
        waits("older", "p", "ann", 50, 40),
        waits("me", "p", "ann", 50, 10, 3600.0),
        waits("later", "p", "ann", 50, 5, 10 * 3600.0),
    )
    busy = replace(runs("busy", 8, "a", None), project="p")
    accounts = (Account("p", weight=2.0), Account("q"))
    seen = Snapshot(NOW, (node("a", free=0),), queued, (busy,), accounts=accounts, policy=BY_SERVICE)
    made = plan(seen)
    reported = explain_position(seen, made, JobId("me"))
    assert reported.startswith(
        "3 jobs come before it: 1 is of a larger priority than its 50; 1 is of projects whose turn"
    )
    assert "1 is of the same user and first by attained-service: less GPU time so far" in reported
    assert "Its project p holds 100% of the cluster, lately 0%, with weight 2" in reported
    assert "it is on level 3 of 11, having had 1 GPU hour" in reported
    assert not any(name in reported for name in ("urgent", "other", "older", "bob"))
    assert explain_position(seen, made, JobId("urgent")).startswith("no job comes before it")
    assert explain_position(seen, made, JobId("busy")) == ""


SHUT = "is quarantined since 2026-11-21 11:00 UTC (uncorrectable ECC error in job x), until 2026-11-21 15:00 UTC"


def quarantined(name: str, free: int = 8) -> NodeSnapshot:
    return node(
        name, free=free, is_schedulable=False, why_not=SHUT, is_quarantined=True, opens_at=NOW + timedelta(hours=3)
    )


def test_the_reason_names_quarantined_nodes_that_have_room() -> None:
    alone = why([quarantined("a"), node("b", 1)], gang(1, 8))
    assert alone.code is WaitReasonCode.NO_NODES
    assert f"take no new work: a {SHUT}" in alone.sentence
    busy = why([quarantined("a"), node("b", free=2)], gang(1, 8), [runs("other", 6, "b", None)])
    assert busy.code is WaitReasonCode.NO_ROOM
    assert busy.sentence.endswith(f". Besides, a {SHUT}")
    assert busy.numbers["quarantined"] == ["a"]
    full = why([quarantined("a", free=2), node("b", free=2)], gang(1, 8), [runs("other", 6, "b", None)])
    assert "quarantined" not in full.sentence
