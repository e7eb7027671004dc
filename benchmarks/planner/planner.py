"""How long one plan takes: 500 nodes, 2,000 running gangs, 10,000 queued jobs of few and of many shapes.

    python3 dev.py bench planner [--rounds 7] [--seed 1] [--large]

``--large``: instead 10,000 nodes (8 GPUs on most) and 50,000 queued jobs; then the same with 40 urgent ones, for which
others are stopped.

Per case two plans: the first, which starts what fits, and the next, which finds the cluster as that left it: the tick
of a platform whose queue waits. Prints the seed, then the median, the range, and what the plan held. The garbage
collector is on, with the scheduler's own thresholds (``scheduler/__main__.py``).
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot, Plan, QueuedGang, RunningGang, Snapshot, plan
from scheduler.simulator.cluster import SimulatedCluster

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GIB = 2**30


class Filling:
    """Nodes that are filled by running gangs."""

    def __init__(self, random_: random.Random, nodes: int) -> None:
        self.random = random_
        self.wholes: list[Amounts] = []
        self.labels: list[dict[str, str]] = []
        for number in range(nodes):
            self.labels.append({"topology/rack": f"r{number // 16}", "topology/zone": f"z{number // 128}"})
            kind = number % 10
            if kind < 6:
                self.wholes.append(Amounts(96_000, 768 * GIB, {"H100": 8}))
            elif kind < 8:
                self.wholes.append(Amounts(64_000, 512 * GIB, {"A100": 8}))
            elif kind < 9:
                self.wholes.append(Amounts(32_000, 128 * GIB, {"T4": 4}))
            else:
                self.wholes.append(Amounts(64_000, 256 * GIB, {}))
        self.free: list[tuple[int, int, dict[str, int]]] = [
            (whole.cpu_milli, whole.memory_bytes, dict(whole.gpus)) for whole in self.wholes
        ]

    def run(self, gangs: int) -> tuple[RunningGang, ...]:
        running: list[RunningGang] = []
        numbers = list(range(len(self.free)))
        for number in range(gangs):
            request = ResourceRequest(2_000, 8 * GIB, self.random.choice([1, 1, 1, 2]))
            places: list[tuple[str, NodeId]] = []
            for at in self.random.sample(numbers, len(numbers)):
                cpu, memory, gpus = self.free[at]
                model = next((m for m, count in gpus.items() if count >= request.gpu_count), None)
                if model is None or cpu < request.cpu_milli:
                    continue
                self.free[at] = (
                    cpu - request.cpu_milli,
                    memory - request.memory_bytes,
                    gpus | {model: gpus[model] - request.gpu_count},
                )
                places.append(("worker", NodeId(f"node-{at:05}")))
                if len(places) == 1 + number % 2:
                    break
            if not places:
                break
            end = NOW + timedelta(minutes=self.random.randint(1, 3000)) if number % 3 else None
            gang = Gang((GangRole("worker", len(places), request),))
            running.append(RunningGang(JobId(f"run-{number:06}"), f"run-{number}", "p", 50, gang, tuple(places), end))
        return tuple(running)

    def views(self) -> tuple[NodeSnapshot, ...]:
        return tuple(
            NodeSnapshot(NodeId(f"node-{at:05}"), self.labels[at], whole, Amounts(cpu, memory, gpus))
            for at, (whole, (cpu, memory, gpus)) in enumerate(zip(self.wholes, self.free, strict=True))
        )


def random_gang(random_: random.Random, unlike: int) -> Gang:
    """``unlike`` makes the request differ from all others."""
    models = random_.choice([(), ("H100",), ("A100",), ("H100", "A100"), ("T4",)])
    gpus = random_.choice([0, 1, 1, 2, 4, 8] if models != ("T4",) else [1, 2, 4])
    request = ResourceRequest(
        1_000 * (1 + gpus) + unlike % 7919, 4 * GIB * (1 + gpus) + unlike, gpus, models if gpus else ()
    )
    workers = random_.choice([1, 1, 1, 1, 2, 2, 4, 8, 16])
    roles = [GangRole("worker", workers, request)]
    if random_.random() < 0.2:
        roles.append(GangRole("ps", max(1, workers // 2), ResourceRequest(2_000, 8 * GIB)))
    topology = random_.choice([None, None, None, None, "rack"])
    return Gang(tuple(roles), topology=topology, topology_required=bool(topology) and random_.random() < 0.5)


def queue(random_: random.Random, jobs: int, shapes: int) -> tuple[QueuedGang, ...]:
    gangs = [random_gang(random_, number) for number in range(shapes)]
    names = [gang.shape() for gang in gangs]
    queued = []
    for number in range(jobs):
        at = number % shapes
        limit = None if random_.random() < 0.5 else float(random_.randint(60, 200_000))
        age = timedelta(seconds=random_.randint(0, 100_000))
        queued.append(
            QueuedGang(JobId(f"job-{number:06}"), f"job-{number}", "p", "u", 50, NOW - age, gangs[at], names[at], limit)
        )
    return tuple(queued)


def snapshot(seed: int, *, nodes: int, running: int, jobs: int, shapes: int) -> Snapshot:
    random_ = random.Random(seed)
    filling = Filling(random_, nodes)
    gangs = filling.run(running)
    return Snapshot(NOW, filling.views(), queue(random_, jobs, shapes), gangs)


def applied(given: Snapshot, made: Plan) -> Snapshot:
    """The same a moment later: what was started runs, the others wait."""
    world = SimulatedCluster(given.nodes)
    for job in given.queued:
        world.enqueue(job)
    world.apply(made, given.now)
    after = world.snapshot(given.now)
    return replace(after, running=given.running + after.running)


def with_urgent(seed: int, given: Snapshot, jobs: int) -> Snapshot:
    """An hour later, with so many jobs of a larger priority than all others."""
    urgent = queue(random.Random(seed), jobs, jobs // 2)
    more = tuple(replace(job, job_id=JobId(f"urgent-{job.job_id}"), priority=90) for job in urgent)
    return replace(given, now=given.now + timedelta(hours=1), queued=given.queued + more)


def measured(rounds: int, given: Snapshot) -> tuple[list[float], list[float]]:
    """Wall and CPU seconds of each round."""
    plan(given)
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        plan(given)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return walls, cpus


def in_ms(times: list[float]) -> str:
    return f"{statistics.median(times) * 1000:.0f} ms ({min(times) * 1000:.0f}–{max(times) * 1000:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    gc.set_threshold(50_000, 20, 100)
    print(f"seed {options.seed}, {options.rounds} rounds after one to warm up; median (range)")
    few = {"nodes": 500, "running": 2000, "jobs": 10_000, "shapes": 30}
    many = few | {"shapes": 10_000}
    cases = {
        "10,000 jobs, 30 shapes": few,
        "10,000 jobs, 10,000 shapes": many,
        "10,000 jobs, 30 shapes, empty cluster": few | {"running": 0},
        "10,000 jobs, 10,000 shapes, empty cluster": many | {"running": 0},
        "1 job": few | {"jobs": 1, "shapes": 1},
    }
    if options.large:
        large = {"nodes": 10_000, "running": 0, "jobs": 50_000, "shapes": 30}
        cases = {"10,000 nodes, 50,000 jobs, 30 shapes": large}
    for name, sizes in cases.items():
        given = snapshot(options.seed, **sizes)
        made = plan(given)
        left = applied(given, made)
        states = [("first", given), ("next", left)]
        if options.large:
            states.append(("40 urgent jobs more,", with_urgent(options.seed, left, 40)))
        for kind, state in states:
            made = plan(state)
            walls, cpus = measured(options.rounds, state)
            replicas = sum(len(start.placements) for start in made.starts)
            print(
                f"{name}, {kind} plan: wall {in_ms(walls)}, CPU {in_ms(cpus)}; {len(state.running)} running, "
                f"{len(made.preempts)} stopped, {len(made.starts)} started ({replicas} replicas, "
                f"{replicas / statistics.median(cpus):.0f} per CPU second), "
                f"{len({id(reason) for reason in made.waits.values()})} reasons"
            )


if __name__ == "__main__":
    main()
