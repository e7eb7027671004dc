"""Public traces through the production planner in virtual time, against what their papers published.

    python3 dev.py bench traces --traces FOLDER [--only muri|pollux|elastic|shockwave] [--trace trace3]
                                [--estimates unknown] [--restart 0 30 120] [--nodes 16 --gpus 8]
                                [--workloads workloads-realistic] [--json] [--no-checkpoints]
                                [--policy order=fair-finish]

FOLDER has ``muri-sigcomm22/trace*.csv``, ``pollux-osdi21/{workloads,traces}`` and ``shockwave-nsdi23/*.trace`` with
``tacc_throughputs.json.gz``, as their artifacts have them. On a cluster of another size, for other traces and for other
loads nothing was published, and only the results are shown. No chance is involved. All rows are of the default
policy, as a new platform has it, and know what the platform knows by itself: the run times of the jobs that have
ended (``--estimates history``). With ``--policy`` or ``--no-checkpoints`` (no job can be resumed) they are marked as
deviations; ``unknown`` learns no more than the distribution of all run times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import yaml

from core.domain.sharing.policy import Policy
from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.estimates import Knowledge
from scheduler.simulator.metrics import Summary, summarise
from scheduler.simulator.reading.arrival import Arrival
from scheduler.simulator.reading.scenario import Scenario, read_nodes
from scheduler.simulator.reading.settings import read_policy
from scheduler.simulator.runs import run
from scheduler.simulator.traces import flat, gavel, pollux, pollux_elastic

# Mean completion times in seconds that the papers' own simulators print (the traces are theirs; 8 nodes x 8 GPUs).
MURI = {
    "trace1": {"SRSF": 980_140.57, "Tiresias-L": 3_330_371.31},
    "trace3": {"SRSF": 185_021.88, "Tiresias-L": 347_213.25, "FIFO + backfill": 480_105.0},
}
MURI_GOALS = {
    Knowledge.HISTORY: ("Tiresias-L", 0.85),
    Knowledge.UNKNOWN: ("Tiresias-L", 0.85),
    Knowledge.KNOWN: ("SRSF", 1.0),
    Knowledge.LEARNT: ("SRSF", 1.15),
}
# Without stated run times.
_DEFAULT = (Knowledge.HISTORY, Knowledge.UNKNOWN)
# Of the mean of these workloads, on 16 nodes x 4 GPUs, by load.
POLLUX_COUNT, POLLUX_GOAL = 8, 0.9
POLLUX_TIRESIAS_H = {"workloads-0.5": 0.581, "workloads": 1.122, "workloads-1.5": 1.717, "workloads-2.0": 2.789}
POLLUX_BACKFILL_H = {"workloads": 2.00}  # FIFO with greedy backfill, nobody stopped
POLLUX_H = {"workloads": 0.764}  # Pollux itself, whose jobs are elastic
SHOCKWAVE_TRACE = "120jobs_120_0.2_5_100_40_25"
# Of Themis' definition nothing was published; what Shockwave reached by its own is the goal.
SHOCKWAVE = {"worst rho": 1.78, "unfair": 0.05, "makespan": 24_197.4, "unfair, Themis": 0.05}


@dataclass(frozen=True)
class Row:
    """One figure. ``published`` and ``goal``: ``None`` where there is no published figure of this trace and cluster;
    ``is_reached``: against the goal, if any.
    """

    workload: str
    estimates: str
    restart_cost_s: float
    figure: str
    result: float
    published: float | None
    goal: float | None
    is_reached: bool
    preemptions: int
    plans: int
    cpu_s: float
    plan_cpu_ms: float


def main() -> int:
    """Exit code 1 when a goal is missed, 2 when the input is wrong."""
    options = _parse()
    rows: list[Row] = []
    deviations = [f"{name}={value}" for name, value in options.policy.items()]
    deviations += ["no checkpoints"] if options.no_checkpoints else []
    if not options.json:
        print(f"deviations: {', '.join(deviations)}" if deviations else "default policy")
    try:
        for row in _rows(options):
            rows.append(row)
            if not options.json:
                print(_line(row), flush=True)
    except ScenarioError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return 0 if all(row.is_reached for row in rows) else 1


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    kinds = [Knowledge(name) for name in options.estimates]
    for cost_s in options.restart:
        for knowledge in kinds:
            if options.only in (None, "muri"):
                for name in options.trace or sorted(MURI):
                    yield _muri(options, options.traces / "muri-sigcomm22" / f"{name}.csv", knowledge, cost_s)
            if options.only in (None, "pollux"):
                yield _pollux(options, options.traces / "pollux-osdi21", knowledge, cost_s)
            if options.only in (None, "elastic") and knowledge in _DEFAULT:
                yield _pollux(options, options.traces / "pollux-osdi21", knowledge, cost_s, is_elastic=True)
            if options.only in (None, "shockwave"):
                yield from _shockwave(options, options.traces / "shockwave-nsdi23", knowledge, cost_s)


def _policy(options: argparse.Namespace, cost_s: float) -> Policy:
    """The default policy with the restart cost, which is the workload's, and the deviations asked for."""
    settings = read_policy(options.policy)
    return replace(settings, restart_cost_s=cost_s)


def _simulate(
    options: argparse.Namespace,
    arrivals: Sequence[Arrival],
    cluster: tuple[int, int],
    knowledge: Knowledge,
    cost_s: float,
) -> tuple[Summary, float]:
    nodes, gpus = cluster
    policy = _policy(options, cost_s)
    scenario = Scenario(
        name="trace",
        nodes=read_nodes([{"name": "node-{}", "count": nodes, "cpu": 256, "memory": "2Ti", "gpus": {"V100": gpus}}]),
        arrivals=tuple(replace(arrival, is_resumable=not options.no_checkpoints) for arrival in arrivals),
        policy=policy,
        restart_cost_s=policy.restart_cost_s,
        resize_cost_s=policy.restart_cost_s,
        knowledge=knowledge,
    )
    before_s = time.process_time()
    figures = summarise(run(scenario, cpu_clock=time.process_time))
    if figures.finished < figures.jobs:
        raise SystemExit(f"{figures.jobs - figures.finished} jobs did not end")
    return figures, time.process_time() - before_s


def _cluster(options: argparse.Namespace, nodes: int, gpus: int) -> tuple[int, int, bool]:
    """Nodes, GPUs per node, and whether that is the cluster of the published figures."""
    chosen = (options.nodes or nodes, options.gpus or gpus)
    return *chosen, chosen == (nodes, gpus)


def _muri(options: argparse.Namespace, path: Path, knowledge: Knowledge, cost_s: float) -> Row:
    nodes, gpus, is_published = _cluster(options, 8, 8)
    arrivals = flat.read(path, flat.MURI, node_gpus=gpus)
    figures, cpu_s = _simulate(options, arrivals, (nodes, gpus), knowledge, cost_s)
    peer, most = MURI_GOALS[knowledge]
    if options.no_checkpoints:
        peer, most = "FIFO + backfill", 1.0
    published = MURI.get(path.stem, {}).get(peer) if is_published else None
    return _row(
        f"Muri {path.stem}",
        knowledge,
        cost_s,
        "mean JCT, s" if published is None else f"mean JCT / {peer}",
        figures.completion.mean,
        published,
        most,
        [figures],
        cpu_s,
    )


def _pollux(
    options: argparse.Namespace, folder: Path, knowledge: Knowledge, cost_s: float, *, is_elastic: bool = False
) -> Row:
    """``num_replicas`` workers each; 16 nodes x 4 GPUs. The 30 s that each first start costs are in the durations.

    ``is_elastic``: one worker or more each under the default policy; a resize costs as much as a restart.
    """
    made: list[Summary] = []
    cpu_s = 0.0
    nodes, gpus, is_published = _cluster(options, 16, 4)
    paths = sorted((folder / options.workloads).glob("workload-*.csv"))
    if not paths:
        raise ScenarioError(f"{folder / options.workloads}: has no workload-*.csv")
    for path in paths:
        arrivals = (
            pollux_elastic.read(path, folder / "traces", gpus=nodes * gpus)
            if is_elastic
            else pollux.read(path, folder / "traces")
        )
        figures, used_s = _simulate(options, arrivals, (nodes, gpus), knowledge, cost_s)
        made.append(figures)
        cpu_s += used_s
    mean_h = statistics.fmean(figures.completion.mean for figures in made) / 3600
    peers_h, most = (POLLUX_BACKFILL_H, 1.0) if options.no_checkpoints else (POLLUX_TIRESIAS_H, POLLUX_GOAL)
    if is_elastic:
        peers_h, most = POLLUX_H, 1.0
    published = peers_h.get(options.workloads) if is_published and len(made) == POLLUX_COUNT else None
    name = f"Pollux{' elastic' if is_elastic else ''}, {len(made)} {'workload' if len(made) == 1 else 'workloads'}"
    return _row(name, knowledge, cost_s, "mean JCT, h", mean_h, published, most, made, cpu_s)


def _shockwave(options: argparse.Namespace, folder: Path, knowledge: Knowledge, cost_s: float) -> Iterator[Row]:
    nodes, gpus, is_published = _cluster(options, 8, 4)
    throughputs = gavel.Throughputs.read(folder / "tacc_throughputs.json.gz")
    for path in sorted(folder.glob("*.trace")):
        arrivals = gavel.read(path, throughputs)
        figures, cpu_s = _simulate(options, arrivals, (nodes, gpus), knowledge, cost_s)
        static, present = figures.static_fairness, figures.fairness
        for name, result, most in (
            ("worst rho", static.worst, 1.0),
            ("unfair", static.unfair, 1.0),
            ("makespan", figures.makespan_s, 1.05),
            ("worst rho, Themis", present.worst, 1.0),
            ("unfair, Themis", present.unfair, 1.0),
        ):
            published = SHOCKWAVE.get(name) if is_published and path.stem == SHOCKWAVE_TRACE else None
            yield _row(f"Shockwave {len(arrivals)}", knowledge, cost_s, name, result, published, most, [figures], cpu_s)


def _row(
    workload: str,
    knowledge: Knowledge,
    cost_s: float,
    figure: str,
    result: float,
    published: float | None,
    most: float,
    made: Sequence[Summary],
    cpu_s: float,
) -> Row:
    goal = None if published is None else published * most
    plans = sum(figures.plans for figures in made)
    decided_s = sum(figures.plans * figures.decision_cpu.mean for figures in made if figures.decision_cpu is not None)
    return Row(
        workload,
        knowledge.value,
        cost_s,
        figure,
        result,
        published,
        goal,
        goal is None or result <= goal,
        sum(figures.preemptions for figures in made),
        plans,
        cpu_s,
        1000 * decided_s / plans,
    )


def _line(row: Row) -> str:
    compared = "no published figure of this trace and cluster"
    if row.published is not None and row.goal is not None:
        compared = (
            f"published {row.published:>12,.3f}  ratio {row.result / row.published:5.3f}  goal "
            f"{row.goal / row.published:4.2f}  {'reached' if row.is_reached else 'MISSED '}"
        )
    return (
        f"{row.workload:<20} {row.estimates:<8} restart {row.restart_cost_s:>4.0f} s  {row.figure:<22} "
        f"{row.result:>12,.3f}  {compared}  {row.preemptions} preemptions, {row.plans} plans of "
        f"{row.plan_cpu_ms:.1f} ms, {row.cpu_s:.0f} s CPU"
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="the folder with the traces")
    parser.add_argument("--only", choices=("muri", "pollux", "elastic", "shockwave"))
    parser.add_argument("--nodes", type=int, help="nodes of the cluster, if not as published")
    parser.add_argument("--gpus", type=int, help="GPUs of each node, if not as published")
    parser.add_argument("--workloads", default="workloads", help="of Pollux, the folder with the workloads")
    parser.add_argument("--trace", nargs="*", help="of Muri, only these")
    parser.add_argument(
        "--estimates",
        nargs="*",
        default=["history", "known"],
        choices=[knowledge.value for knowledge in Knowledge],
    )
    parser.add_argument("--restart", nargs="*", type=float, default=[0.0, 30.0, 120.0], help="seconds per preemption")
    parser.add_argument(
        "--policy", action="append", default=[], metavar="NAME=VALUE", help="a deviation from the default policy"
    )
    parser.add_argument("--no-checkpoints", action="store_true", help="a deviation: no job can be resumed")
    parser.add_argument("--json", action="store_true", help="figures for programs")
    options = parser.parse_args()
    settings = [word.partition("=") for word in options.policy]
    options.policy = {name.strip(): yaml.safe_load(value) for name, _, value in settings}
    return options


if __name__ == "__main__":
    sys.exit(main())
