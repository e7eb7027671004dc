# ruff: noqa: T201 (a command line)
"""``python -m scheduler.simulator scenario.yaml [--json] [--plot FILE.svg]``

A job list (.csv, .trace, .jsonl) needs ``--nodes`` and ``--gpus`` or a ``--node-list``, and ``--format`` where its
columns are not ours.

With ``--forecasts 10m`` expected starts are forecast at this interval, and compared with the real ones.

With ``--more-nodes 20`` or ``--try order=shortest-first,time_slice_s=600`` (repeatable) the same jobs are simulated
again for each, and the figures are shown, and plotted, side by side.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from trainmaster.spec.quantity import parse_duration_s

from core.domain.sharing.recorded_forecasts import ForecastAccuracy
from scheduler.simulator.engine import Simulation
from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.expectations import failures
from scheduler.simulator.forecasts import WARM_UP, ForecastScorer
from scheduler.simulator.metrics import summarise
from scheduler.simulator.plots import ENDINGS, Curves, check, plot
from scheduler.simulator.reading.inputs import FORMATS, JobListOptions, read
from scheduler.simulator.reading.scenario import Scenario
from scheduler.simulator.reading.settings import read_policy
from scheduler.simulator.runs import Case, comparison_table, copies_of, report, run


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: ran, and what was expected holds; 1: something expected does not; 2: the input is wrong."""
    options = _options(arguments)
    try:
        if options.plot is not None:
            check(options.plot)
        scenario = _scenario(options)
        print(f"seed {scenario.seed}", file=sys.stderr if options.json else sys.stdout)
        if options.more_nodes or options.tries:
            return _compare(scenario, options)
        scorer = _scorer(options)
        outcome = Simulation(scenario, on_plan=scorer, cpu_clock=time.process_time).run()
        if options.plot is not None:
            plot(scenario.name, [Curves.of(scenario.name, outcome)], options.plot)
    except ScenarioError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    wrong = failures(outcome)
    if options.json:
        figures = {"name": scenario.name, "seed": scenario.seed, **summarise(outcome).to_json(), "failures": wrong}
        if scorer is not None:
            figures["forecasts"] = asdict(ForecastAccuracy.of(scorer.scored[WARM_UP:]))
        print(json.dumps(figures, indent=2))
    else:
        print(report(outcome))
        if scorer is not None:
            print(f"\n{ForecastAccuracy.of(scorer.scored[WARM_UP:]).sentence}")
    return 1 if wrong else 0


def _scorer(options: argparse.Namespace) -> ForecastScorer | None:
    if options.forecasts is None:
        return None
    try:
        every_s = parse_duration_s(options.forecasts)
    except ValueError as error:
        raise ScenarioError(f"--forecasts: {error}") from error
    return ForecastScorer(every=timedelta(seconds=every_s))


def _compare(scenario: Scenario, options: argparse.Namespace) -> int:
    cases = [("as it is", scenario)]
    if options.more_nodes < 0:
        raise ScenarioError("--more-nodes: is 1 or more")
    if options.more_nodes:
        more = copies_of(scenario.nodes, options.more_nodes)
        cases.append((f"{options.more_nodes} more nodes", replace(scenario, nodes=(*scenario.nodes, *more))))
    cases += [(words, replace(scenario, policy=_tried(words))) for words in options.tries]
    made: list[Case] = []
    curves: list[Curves] = []
    for name, case in cases:
        outcome = run(case, cpu_clock=time.process_time)
        made.append(Case(name, summarise(outcome)))
        curves.append(Curves.of(name, outcome))
    if options.plot is not None:
        plot(scenario.name, curves, options.plot)
    if options.json:
        print(json.dumps([{"name": case.name, **case.figures.to_json()} for case in made], indent=2))
    else:
        print(comparison_table(made))
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
    around = JobListOptions(**{field.name: getattr(options, field.name) for field in fields(JobListOptions)})
    return read(options.scenario, options.format, around, seed=options.seed)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scheduler.simulator", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "scenario", type=Path, help="a scenario (.yaml), a job list (.csv, .trace) or a platform's history (.jsonl)"
    )
    parser.add_argument("--json", action="store_true", help="figures for programs")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help=f"draw the figures into this file ({', '.join(ENDINGS)})"
    )
    parser.add_argument("--seed", type=int, help="instead of the scenario's own")
    parser.add_argument("--more-nodes", type=int, default=0, help="compare with so many more nodes")
    parser.add_argument(
        "--try", dest="tries", action="append", default=[], help="compare with these settings of the policy"
    )
    parser.add_argument(
        "--forecasts", metavar="INTERVAL", help="forecast starts, such as every 10m, and report how many were right"
    )
    listed = parser.add_argument_group("for a job list")
    listed.add_argument("--format", choices=FORMATS, help="of a .csv that has no columns of our names")
    listed.add_argument("--nodes", type=int, default=8, help="how many nodes (8)")
    listed.add_argument("--gpus", type=int, default=8, help="GPUs of each node (8)")
    listed.add_argument(
        "--node-list", type=Path, metavar="FILE", help="the nodes, as openb lists them, instead of these"
    )
    listed.add_argument(
        "--profiles", type=Path, metavar="PATH", help="what jobs do in a second: of pollux a folder, of gavel a table"
    )
    listed.add_argument("--limit", type=int, help="only the first so many jobs")
    listed.add_argument("--tick", default="0", help="plan at most this often, such as 60s")
    listed.add_argument(
        "--estimates", default="history", help="history (what the platform learns by itself), unknown, known or learnt"
    )
    listed.add_argument("--restart-cost", default="30s", help="cost of a start after a preemption (30s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
