# ruff: noqa: T201 (a command line)
"""``python -m scheduler.simulator scenario.yaml [--json]``; a CSV trace needs ``--nodes`` and ``--gpus``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scheduler.simulator.engine import Simulation
from scheduler.simulator.expect import failures
from scheduler.simulator.metrics import summarise
from scheduler.simulator.mistakes import ScenarioError
from scheduler.simulator.report import report
from scheduler.simulator.scenario import Scenario, load, parse


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: ran, and what was expected holds; 1: something expected does not; 2: the input is wrong."""
    parser = argparse.ArgumentParser(prog="python -m scheduler.simulator", description=__doc__)
    parser.add_argument("scenario", type=Path, help="a scenario (.yaml) or a trace (.csv)")
    parser.add_argument("--json", action="store_true", help="figures for programs")
    parser.add_argument("--seed", type=int, help="instead of the scenario's own")
    parser.add_argument("--nodes", type=int, default=8, help="for a trace: how many nodes")
    parser.add_argument("--gpus", type=int, default=8, help="for a trace: GPUs of each node")
    parser.add_argument("--tick", default="0", help="for a trace: plan at most this often, such as 60s")
    options = parser.parse_args(arguments)
    try:
        scenario = _scenario(options)
        print(f"seed {scenario.seed}", file=sys.stderr if options.json else sys.stdout)
        outcome = Simulation(scenario).run()
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


def _scenario(options: argparse.Namespace) -> Scenario:
    if options.scenario.suffix != ".csv":
        return load(options.scenario, seed=options.seed)
    return parse(
        {
            "name": options.scenario.stem,
            "nodes": [{"name": "node-{}", "count": options.nodes, "gpus": options.gpus}],
            "trace": {"file": options.scenario.name},
            "tick": options.tick,
        },
        folder=options.scenario.parent,
    )


if __name__ == "__main__":
    sys.exit(main())
