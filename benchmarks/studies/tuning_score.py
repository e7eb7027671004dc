"""How good the points are that a study tries: 16 rounds of 8 in parallel, against Optuna's TPE, Optuna's GP, and
chance.

``tuning_score.py run --into FOLDER [--arms auto,tpe,gp,random] [--repeats 10] [--tasks NAME,...]``: computes what is
not in FOLDER yet, one line of JSON for each search, so that it may be interrupted, and an arm be measured anew. What a
point costs is kept in ``costs.jsonl`` beside them: a search that was interrupted, or shares points with others, fits no
model twice. ``tuning_score.py tell --into FOLDER``: the scores with bootstrap intervals.

The tasks are scikit-learn's models on its own data sets (:mod:`tuning_tasks`); every cost is a real cross-validation.
``auto`` is what a study does unless told otherwise, asked as the control loop asks it: all trials of a round are
pending while a point for the next one is drawn ahead, and the rest is drawn when they are over. The others are Optuna's
samplers with their own defaults (TPE with ``constant_liar``, as Optuna advises for trials side by side), asked 8 times,
then told 8 results. The arms of a repeat share a seed.

The score of a search is 100 * (m - b) / (m - o), never below 0: b is the least cost that it found, m the median cost of
the points that chance drew in all repeats of the task, and o the least cost that any search ever found there. So 100 is
the best that is known, and 0 what a point is worth that nobody has searched for. (The scores of Bayesmark, and of
NeurIPS 2020's challenge of black-box optimizers, are of this kind.) ``beyond chance`` says the same with m the median
of the *ends* of random searches of this very length, and may be negative.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # GP's matrices are small: threads would only wait for each other
import optuna
from optuna.samplers import GPSampler, RandomSampler, TPESampler
from trainmaster.studies import Algorithm, Goal, Space, parse_study

from benchmarks.support.tuning_tasks import TASKS, Task
from scheduler.control.studies.decisions import prefetched_to_start
from scheduler.tuning import ObservedTrial, Proposal, ProposalRequest, chosen_algorithm, propose
from scheduler.tuning.engine import _distribution, _outer
from scheduler.tuning.proposers import is_quick

ROUNDS, PARALLEL = 16, 8
ARMS = ("auto", "tpe", "gp", "random")
DRAWS = 10_000  # of the bootstrap


def main() -> None:
    options = _options()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if options.verb == "run":
        run(options)
    else:
        tell(read(options.into), options.arms)


def run(options: argparse.Namespace) -> None:
    options.into.mkdir(parents=True, exist_ok=True)
    done = {(search["arm"], search["task"], search["repeat"]) for search in read(options.into)}
    known = Known(options.into / "costs.jsonl")
    # By repeats first: whatever it is interrupted at, the arms stay paired.
    for repeat in range(options.first, options.first + options.repeats):
        for task in TASKS:
            for arm in options.arms:
                if (arm, task.name, repeat) in done or (options.tasks and task.name not in options.tasks):
                    continue
                search = Search(task, 1000 + repeat, known)
                began = time.process_time()
                (search.by_platform if arm == "auto" else search.by_optuna)(*(() if arm == "auto" else (arm,)))
                line = {"arm": arm, "task": task.name, "repeat": repeat, "costs": search.costs}
                line |= {"asked_s": round(search.ask_s, 2), "asked_cpu_s": round(search.ask_cpu_s, 2)}
                line |= {"cpu_s": round(time.process_time() - began, 2)}
                with (options.into / "searches.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(
                    f"{repeat} {task.name:<32} {arm:<7} best {min(c for c in search.costs if c is not None):.5f} "
                    f"{line['cpu_s']} s",
                    flush=True,
                )


class Known:
    """What points cost, kept in a file: a task's cost follows from the point alone (:mod:`tuning_tasks`)."""

    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self._costs: dict[tuple[str, str], float | None] = {
            (task, point): cost for task, point, cost in map(json.loads, lines)
        }

    def cost(self, task: Task, point: Mapping[str, Any]) -> float | None:
        # As text with all digits: only the very same numbers are the same point.
        key = (task.name, json.dumps(point, sort_keys=True))
        if key not in self._costs:
            self._costs[key] = task.cost(point)
            with self._file.open("a") as file:
                file.write(json.dumps([*key, self._costs[key]]) + "\n")
        return self._costs[key]


class Search:
    """One search for one task. ``costs``: in the order of the trials; ``None``: it failed."""

    def __init__(self, task: Task, seed: int, known: Known) -> None:
        self.task, self.seed, self.known = task, seed, known
        raw = {"name": "score", "parameters": task.parameters, "metric": "cost", "goal": "minimize"}
        self.spec = parse_study({**raw, "budget": {"trials": ROUNDS * PARALLEL, "parallel": PARALLEL}})
        self.space = Space.of(self.spec)
        self.costs: list[float | None] = []
        self.ask_s = self.ask_cpu_s = 0.0

    def by_platform(self) -> None:
        """As :mod:`scheduler.control.studies.study_loop` begins trials and draws ahead, where those of a round end
        together.
        """
        finished: list[ObservedTrial] = []
        failed_points: list[Mapping[str, Any]] = []
        ready: list[Proposal] = []
        proposed = 0
        algorithm = chosen_algorithm(self.space, Algorithm.AUTO, (Goal.MINIMIZE,), ROUNDS * PARALLEL)

        def question(count: int, pending: Sequence[Proposal]) -> ProposalRequest:
            return ProposalRequest(
                self.space, algorithm, (Goal.MINIMIZE,), self.seed, proposed, count, finished, pending, failed_points
            )

        for _ in range(ROUNDS):
            prefetched = ready[: prefetched_to_start(len(ready), PARALLEL, PARALLEL, PARALLEL)]
            drawn = self._timed(lambda prefetched=prefetched: propose(question(PARALLEL - len(prefetched), prefetched)))
            proposed += len(drawn)
            points = [*prefetched, *drawn]
            ready = []
            if not is_quick(
                question(0, points)
            ):  # all of them are drawn ahead; of a round that ends at once one is used
                ready = self._timed(lambda points=points: propose(question(1, points)))
                proposed += PARALLEL
            for point in points:
                cost = self._tried(point.parameters)
                if cost is None:
                    failed_points.append(point.parameters)
                else:
                    finished.append(ObservedTrial(point.parameters, (cost,), point.memo))

    def by_optuna(self, arm: str) -> None:
        samplers: Mapping[str, Callable[[], Any]] = {
            "tpe": lambda: TPESampler(seed=self.seed, constant_liar=True),
            "gp": lambda: GPSampler(seed=self.seed),
            "random": lambda: RandomSampler(seed=self.seed),
        }
        study = optuna.create_study(sampler=samplers[arm]())
        distributions = {name: _distribution(parameter) for name, parameter in self.space.parameters.items()}
        for _ in range(ROUNDS):
            trials = self._timed(lambda: [study.ask(distributions) for _ in range(PARALLEL)])
            for trial in trials:
                point = {name: _outer(self.space.parameters[name], inner) for name, inner in trial.params.items()}
                cost = self._tried(point)
                study.tell(trial, cost, state=None if cost is not None else optuna.trial.TrialState.FAIL)

    def _tried(self, point: Mapping[str, Any]) -> float | None:
        cost = self.known.cost(self.task, point)
        self.costs.append(cost)
        return cost

    def _timed(self, ask: Callable[[], Any]) -> Any:
        began, began_cpu = time.perf_counter(), time.process_time()
        found = ask()
        self.ask_s += time.perf_counter() - began
        self.ask_cpu_s += time.process_time() - began_cpu
        return found


def tell(searches: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> None:
    found: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(dict)
    for search in searches:
        found[search["task"], search["repeat"]][search["arm"]] = [cost for cost in search["costs"] if cost is not None]
    whole = {key: by_arm for key, by_arm in found.items() if set(arms) <= by_arm.keys()}
    tasks = [task.name for task in TASKS if any(name == task.name for name, _ in whole)]
    scores: dict[str, dict[str, list[float]]] = {arm: {} for arm in arms}
    beyond: dict[str, dict[str, list[float]]] = {arm: {} for arm in arms}
    for name in tasks:
        # The best that is known: by whatever search, also of arms that are not told of here.
        best = min(min(costs) for (task, _), by in found.items() if task == name for costs in by.values())
        runs = [by for (task, _), by in sorted(whole.items()) if task == name]
        unsearched = statistics.median(cost for by in runs for cost in by["random"])
        ends = statistics.median(min(by["random"]) for by in runs)
        for arm in arms:
            scores[arm][name] = [100 * max(0.0, unsearched - min(by[arm])) / (unsearched - best) for by in runs]
            beyond[arm][name] = [100 * (ends - min(by[arm])) / max(ends - best, 1e-12) for by in runs]
    repeats = {len(next(iter(scores.values()))[name]) for name in tasks}
    print(
        f"{len(tasks)} tasks, {'-'.join(str(n) for n in sorted(repeats))} paired repeats, {ROUNDS} rounds of {PARALLEL}"
    )
    print(f"{'':<34}" + "".join(f"{arm:>10}" for arm in arms))
    for name in tasks:
        print(f"{name:<34}" + "".join(f"{statistics.fmean(scores[arm][name]):>10.2f}" for arm in arms))
    for title, table in (("score", scores), ("beyond chance", beyond)):
        print(f"{title:<34}" + "".join(f"{mean_of(table[arm]):>10.2f}" for arm in arms))
    better = max((arm for arm in ("tpe", "gp") if arm in arms), key=lambda arm: mean_of(scores[arm]), default=None)
    for other in [arm for arm in arms if arm != "auto"]:
        low, middle, high = interval(scores["auto"], scores[other])
        mark = " (the better of Optuna's)" if other == better else ""
        print(f"auto - {other}: {middle:+.2f} points, 95 % of the bootstrap between {low:+.2f} and {high:+.2f}{mark}")
    for arm in arms:
        ask_times = [search["asked_cpu_s"] for search in searches if search["arm"] == arm and "asked_cpu_s" in search]
        if ask_times:
            print(
                f"{arm}: {statistics.fmean(ask_times):.1f} s of the processor to ask for {ROUNDS * PARALLEL} points, "
                "the results given"
            )


def mean_of(by_task: Mapping[str, Sequence[float]]) -> float:
    return statistics.fmean(statistics.fmean(scores) for scores in by_task.values())


def interval(left: Mapping[str, Sequence[float]], right: Mapping[str, Sequence[float]]) -> tuple[float, float, float]:
    """The mean difference over tasks, with the middle 95 % of what resampled repeats give, pairs kept together."""
    chance = random.Random(0)
    pairs = {
        name: [cost - peer for cost, peer in zip(left[name], right[name], strict=True)] for name in left if left[name]
    }
    means = sorted(
        statistics.fmean(
            statistics.fmean(chance.choices(differences, k=len(differences))) for differences in pairs.values()
        )
        for _ in range(DRAWS)
    )
    middle = statistics.fmean(statistics.fmean(differences) for differences in pairs.values())
    return means[round(0.025 * DRAWS)], middle, means[round(0.975 * DRAWS) - 1]


def read(folder: Path) -> list[dict[str, Any]]:
    """All searches of the folder; of one that was computed twice the newer."""
    file = folder / "searches.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines]
    return list({(search["arm"], search["task"], search["repeat"]): search for search in found}.values())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "tell"])
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS))
    parser.add_argument(
        "--tasks", type=lambda text: text.split(";"), default=[], help="Some of them, divided by semicolons."
    )
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
