# ruff: noqa: T201 (a command line)
"""``python -m scheduler.simulator scenario.yaml [--json]``; a trace (.csv, .trace, .jsonl) needs ``--nodes`` and ``--gpus``.

With ``--more-nodes 20`` or ``--try order=shortest-first,time_slice_s=600`` (as often as wanted) the same jobs are run again for
each, and the figures are shown beside one another.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from scheduler.simulator.compare import Case, more_like, run, table
from scheduler.simulator.engine import Simulation
from scheduler.simulator.expect import failures
from scheduler.simulator.metrics import summarise
from scheduler.simulator.mistakes import ScenarioError
from scheduler.simulator.report import report
from scheduler.simulator.scenario import Scenario, load, parse
from scheduler.simulator.settings import read_policy
from scheduler.simulator.traces import flat, own

_FORMATS: Final = {"muri": flat.MURI, "tiresias": flat.TIRESIAS, "philly": flat.PHILLY}


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: ran, and what was expected holds; 1: something expected does not; 2: the input is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m scheduler.simulator", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "scenario", type=Path, help="a scenario (.yaml), a trace (.csv) or a platform's history (.jsonl)"
    )
    parser.add_argument("--json", action="store_true", help="figures for programs")
    parser.add_argument("--seed", type=int, help="instead of the scenario's own")
    parser.add_argument("--format", choices=sorted(_FORMATS), help="of a .csv that has no columns of our names")
    parser.add_argument("--nodes", type=int, default=8, help="for a trace: how many nodes")
    parser.add_argument("--gpus", type=int, default=8, help="for a trace: GPUs of each node")
    parser.add_argument("--tick", default="0", help="for a trace: plan at most this often, such as 60s")
    parser.add_argument("--estimates", default="unknown", help="for a trace: unknown, known, learnt or history")
    parser.add_argument(
        "--restart-cost", default="0", help="for a trace: what a start after a preemption costs, such as 30s"
    )
    parser.add_argument("--more-nodes", type=int, default=0, help="compare with so many more nodes")
    parser.add_argument(
        "--try", dest="tries", action="append", default=[], help="compare with these settings of the policy"
    )
    options = parser.parse_args(arguments)
    try:
        scenario = _scenario(options)
        print(f"seed {scenario.seed}", file=sys.stderr if options.json else sys.stdout)
        if options.more_nodes or options.tries:
            return _compare(scenario, options)
        outcome = Simulation(scenario, cpu_clock=time.process_time).run()
    except ScenarioError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    wrong = failures(outcome)
    if options.json:
        figures = {"name": scenario.name, "seed": scenario.seed, **summarise(outcome).to_json(), "failures": wrong}
        print(json.dumps(figures, indent=2))
    else:
        print(report(outcome))
    return 1 if wrong else 0


def _compare(scenario: Scenario, options: argparse.Namespace) -> int:
    cases = [("as it is", scenario)]
    if options.more_nodes < 0:
        raise ScenarioError("--more-nodes: is 1 or more")
    if options.more_nodes:
        more = more_like(scenario.nodes, options.more_nodes)
        cases.append((f"{options.more_nodes} more nodes", replace(scenario, nodes=(*scenario.nodes, *more))))
    cases += [(words, replace(scenario, policy=_tried(words))) for words in options.tries]
    made = [Case(name, summarise(run(one, cpu_clock=time.process_time))) for name, one in cases]
    if options.json:
        print(json.dumps([{"name": case.name, **case.figures.to_json()} for case in made], indent=2))
    else:
        print(table(made))
    return 0


def _tried(words: str) -> Any:
    """The policy of ``order=fifo,time_slice_s=10m``."""
    settings: dict[str, Any] = {}
    for word in words.split(","):
        name, equals, value = word.partition("=")
        if not equals:
            raise ScenarioError(f"--try: {word!r} is not like order=shortest-first")
        settings[name.strip()] = yaml.safe_load(value)
    return read_policy(settings)


def _scenario(options: argparse.Namespace) -> Scenario:
    path: Path = options.scenario
    if path.suffix not in {".csv", ".jsonl"}:
        return load(path, seed=options.seed)
    data = {
        "name": path.stem,
        "nodes": [{"name": "node-{}", "count": options.nodes, "gpus": options.gpus}],
        "tick": options.tick,
        "estimates": options.estimates,
        "restart_cost": options.restart_cost,
    }
    if path.suffix == ".csv" and options.format is None:
        return parse({**data, "trace": {"file": path.name}}, folder=path.parent)
    form = _FORMATS.get(options.format)
    arrivals = own.read(path) if form is None else flat.read(path, form, node_gpus=options.gpus)
    return replace(parse(data), arrivals=tuple(arrivals))


if __name__ == "__main__":
    sys.exit(main())
