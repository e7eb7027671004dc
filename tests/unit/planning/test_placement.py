"""Where members go."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot, Placement, QueuedGang, Snapshot, plan

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def node(name: str, cpu: int = 16, memory: int = 64, **gpus: int) -> NodeSnapshot:
    whole = Amounts(cpu, memory, gpus)
    return NodeSnapshot(NodeId(name), {}, whole, whole)


def placed(nodes: list[NodeSnapshot], *roles: GangRole, **more) -> tuple[Placement, ...]:
    gang = Gang(roles, **more)
    queued = QueuedGang(JobId("j"), "j", "p", "u", 50, NOW, gang, gang.shape())
    made = plan(Snapshot(NOW, tuple(nodes), (queued,)))
    assert made.starts, made.waits
    return made.starts[0].placements


def on(placements: tuple[Placement, ...], role: str) -> list[str]:
    return [placement.node for placement in placements if placement.role == role]


def test_replicas_come_in_rank_order_and_neighbours_share_a_node() -> None:
    placements = placed([node("a", H100=2), node("b", H100=2)], GangRole("worker", 4, ResourceRequest(1, 1, 1)))
    assert [p.index for p in placements] == [0, 1, 2, 3]
    nodes = on(placements, "worker")
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]


def test_all_members_get_one_model_before_models_are_mixed() -> None:
    nodes = [node("a", A100=4), node("b", H100=2), node("c", H100=2)]
    one = placed(nodes, GangRole("worker", 4, ResourceRequest(1, 1, 1, ("H100", "A100"))))
    assert {p.gpu_model for p in one} == {"H100"}
    mixed = placed(nodes, GangRole("worker", 6, ResourceRequest(1, 1, 1, ("H100", "A100"))))
    assert Counter(p.gpu_model for p in mixed) == {"H100": 4, "A100": 2} or len({p.gpu_model for p in mixed}) == 2


def test_a_replica_never_mixes_models_on_a_node_that_has_two() -> None:
    nodes = [node("a", A100=2, H100=2)]
    placements = placed(nodes, GangRole("worker", 2, ResourceRequest(1, 1, 2)))
    assert sorted(p.gpu_model or "" for p in placements) == ["A100", "H100"]


def test_without_a_wish_the_model_is_taken_that_leaves_the_smallest_hole() -> None:
    nodes = [node("a", H100=8), node("b", A100=2)]
    assert on(placed(nodes, GangRole("worker", 1, ResourceRequest(1, 1, 2))), "worker") == ["b"]


def test_ps_are_spread_over_the_workers_nodes_in_proportion() -> None:
    nodes = [node("a", H100=2), node("b", H100=2), node("c")]
    roles = GangRole("worker", 4, ResourceRequest(1, 1, 1)), GangRole("ps", 2, ResourceRequest(1, 1))
    assert sorted(on(placed(nodes, *roles), "ps")) == ["a", "b"]


def test_ps_find_room_beside_the_workers_although_workers_alone_would_fill_the_cpus() -> None:
    # Two workers would fit on one node, and then no ps beside them.
    nodes = [node("a", cpu=4, H100=2), node("b", cpu=4, H100=2)]
    roles = GangRole("worker", 2, ResourceRequest(2, 1, 1)), GangRole("ps", 2, ResourceRequest(2, 1))
    placements = placed(nodes, *roles)
    assert sorted(on(placements, "worker")) == sorted(on(placements, "ps")) == ["a", "b"]


def test_more_ps_than_room_beside_the_workers_go_elsewhere() -> None:
    nodes = [node("a", cpu=3, H100=2), node("c", cpu=8)]
    roles = GangRole("worker", 2, ResourceRequest(1, 1, 1)), GangRole("ps", 3, ResourceRequest(1, 1))
    assert sorted(on(placed(nodes, *roles), "ps")) == ["a", "c", "c"]


def test_a_job_without_gpus_takes_the_node_without_gpus_although_another_fits_tighter() -> None:
    nodes = [node("a", cpu=4, H100=1), node("b", cpu=16)]
    assert on(placed(nodes, GangRole("worker", 1, ResourceRequest(2, 1))), "worker") == ["b"]


def test_a_chief_without_gpus_stands_with_its_workers() -> None:
    nodes = [node("a", H100=4), node("b"), node("c", H100=4)]
    roles = GangRole("chief", 1, ResourceRequest(1, 1)), GangRole("worker", 4, ResourceRequest(1, 1, 1))
    assert len({p.node for p in placed(nodes, *roles)}) == 1


def test_unlike_roles_that_fit_only_in_one_way_are_placed_in_that_way() -> None:
    # Greedy by size fails: the worker must leave the large node to chief and evaluator.
    nodes = [node("a", cpu=6), node("b", cpu=5)]
    roles = (
        GangRole("chief", 1, ResourceRequest(3, 1)),
        GangRole("worker", 1, ResourceRequest(5, 1)),
        GangRole("evaluator", 1, ResourceRequest(3, 1)),
    )
    assert len(placed(nodes, *roles)) == 3


def test_4096_members_are_placed() -> None:
    nodes = [node(f"n{number:03}", cpu=10_000, memory=10_000, H100=8) for number in range(512)]
    placements = placed(
        nodes, GangRole("worker", 4000, ResourceRequest(1, 1, 1)), GangRole("ps", 96, ResourceRequest(1, 1))
    )
    assert len(placements) == 4096
    assert max(Counter(on(placements, "worker")).values()) == 8
    assert len(set(on(placements, "ps"))) == 96


def test_the_first_job_is_not_stopped_by_one_that_can_never_run() -> None:
    wide = Gang((GangRole("worker", 1, ResourceRequest(1, 1, 99)),))
    small = Gang((GangRole("worker", 1, ResourceRequest(1, 1, 1)),))
    jobs = tuple(
        QueuedGang(JobId(name), name, "p", "u", priority, NOW, gang, gang.shape())
        for name, priority, gang in (("wide", 100, wide), ("small", 0, small))
    )
    made = plan(Snapshot(NOW, (node("a", H100=1),), jobs))
    assert [start.job_id for start in made.starts] == ["small"]


def test_what_a_node_has_too_little_of_counts_as_nothing() -> None:
    over = NodeSnapshot(NodeId("a"), {}, Amounts(4, 4, {"H100": 2}), Amounts(-2, 4, {"H100": -1}))
    gang = Gang((GangRole("worker", 1, ResourceRequest(0, 0, 1)),))
    queued = QueuedGang(JobId("j"), "j", "p", "u", 50, NOW, gang, gang.shape())
    assert not plan(Snapshot(NOW, (over,), (queued,))).starts


def family(*models: str, **more) -> GangRole:
    return GangRole("worker", more.pop("replicas", 1), ResourceRequest(1, 1, more.pop("gpus", 1), models))


def on_model(name: str, **gpus: int) -> NodeSnapshot:
    return node(name, **{model.replace("_", "-"): count for model, count in gpus.items()})


def test_a_family_in_any_spelling_means_its_models() -> None:
    nodes = [on_model("a", a100_sxm4_80gb=2), on_model("b", t4=2), on_model("c", h100_80gb_hbm3=2)]
    (only,) = placed(nodes, family("NVIDIA A100"))
    assert (only.node, only.gpu_model) == ("a", "a100-sxm4-80gb")
    assert [p.gpu_model for p in placed(nodes, family("H100", "A100", replicas=2))] == ["h100-80gb-hbm3"] * 2
    assert on(placed(nodes, family("T4")), "worker") == ["b"]


def test_one_wish_that_several_models_fulfil_prefers_the_smallest_hole() -> None:
    nodes = [on_model("a", a100_pcie_40gb=8), on_model("b", a100_sxm4_80gb=2)]
    assert on(placed(nodes, family("A100", gpus=2)), "worker") == ["b"]
    assert on(placed(nodes, family("a100-40gb", gpus=2)), "worker") == ["a"]
