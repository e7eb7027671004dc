"""What early stopping saves: ASHA against training everything to its end, over learning curves that were really
recorded.

``asha.py [--curves FILE] [--configurations 240] [--repeats 30] [--workers 8]``. First, unless FILE has them, the
curves: a net on scikit-learn's digits (300 images to train on, 300 to ask), whose step, momentum, width, weight decay
and batch are drawn by chance, 81 epochs each, the share of wrong answers after every one. Then both ways in virtual
time, an epoch being the unit of GPU-time: the same points in the same order (another one in each repeat), on as many
workers; with the very rule that studies go by (:mod:`core.domain.studies.trial_schedulers`, ``stopping: asha`` with its
defaults), asked after each epoch, and a stopped trial's worker takes the next point at once.

The target is the median over repeats of the best that training everything has found when its 64 trials are over. Told
is how much sooner the median of the best so far is as good with ASHA, and the middle 95 % of resampled repeats; and the
best of both after equal time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainmaster.studies import Goal, Stopping, StoppingRule

from core.domain.studies.curves import Curve
from core.domain.studies.trial_schedulers import decide_early_stops

EPOCHS = 81
TRIALS = 64
RULE = Stopping(rule=StoppingRule.ASHA)
DRAWS = 2_000


def main() -> None:
    options = _options()
    curves = recorded(options.curves, options.configurations)
    plain, stopped = [], []
    for repeat in range(options.repeats):
        order = list(range(len(curves)))
        random.Random(repeat).shuffle(order)
        chosen = [curves[place] for place in order]
        plain.append(searched(chosen, options.workers, None))
        stopped.append(searched(chosen, options.workers, RULE))
    tell(plain, stopped, len(curves), options)


def recorded(file: Path, count: int) -> list[list[float]]:
    """Of each configuration its error after each epoch; what was recorded before is taken from ``file``."""
    lines = file.read_text().splitlines() if file.exists() else []
    chance = random.Random(0)
    for number in range(count):
        point = {
            "learning_rate_init": 10 ** chance.uniform(-4, 0.5),
            "momentum": chance.uniform(0, 0.99),
            "alpha": 10 ** chance.uniform(-6, 1),
            "hidden_layer_sizes": (round(2 ** chance.uniform(1, 6)),),
            "batch_size": round(2 ** chance.uniform(4, 7)),
        }
        if number >= len(lines):
            lines.append(json.dumps(_trained(point)))
            with file.open("a") as out:
                out.write(f"{lines[-1]}\n")
    return [json.loads(line) for line in lines[:count]]


def _trained(point: dict[str, Any]) -> list[float]:
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    digits: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    features, target = digits.data[order] / 16.0, digits.target[order]
    model = MLPClassifier(solver="sgd", random_state=0, **point)
    errors: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what leaves the numbers: its error says so
        for _ in range(EPOCHS):
            try:
                model.partial_fit(features[:300], target[:300], classes=range(10))
                errors.append(1.0 - float(model.score(features[300:600], target[300:600])))
            except ValueError:  # its weights are no numbers any more
                errors.append(errors[-1] if errors else 0.9)
    return errors


def searched(curves: Sequence[Sequence[float]], workers: int, rule: Stopping | None) -> list[float]:
    """The best error so far after each unit of time. Without a rule ``TRIALS`` trials; with one as many as the time is
    enough for.
    """
    horizon = TRIALS // workers * EPOCHS
    left = list(range(len(curves) if rule else TRIALS))[::-1]
    running: dict[int, int] = {}
    over: list[Curve] = []
    passed: dict[int, int] = {}
    best, best_so_far = 1.0, []
    for _ in range(horizon):
        while left and len(running) < workers:
            running[left.pop()] = 0
        for number in list(running):
            running[number] += 1
            best = min(best, curves[number][running[number] - 1])
        best_so_far.append(best)
        traces = {number: _curve(number, curves[number], epochs) for number, epochs in running.items()}
        verdicts = (
            {} if rule is None else decide_early_stops(rule, Goal.MINIMIZE, list(traces.values()), over[-1000:], passed)
        )
        for number in list(running):
            if number in verdicts or running[number] == EPOCHS:
                is_over = number not in verdicts
                over.append(_curve(number, curves[number], running.pop(number), is_over=is_over))
    return best_so_far


def _curve(number: int, errors: Sequence[float], epochs: int, *, is_over: bool = False) -> Curve:
    return Curve(number, tuple(range(1, epochs + 1)), tuple(errors[:epochs]), is_over)


def speedup(plain: Sequence[Sequence[float]], stopped: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The target, and the times at which the medians of both reach it."""
    target = statistics.median(curve[-1] for curve in plain)
    return target, _reaches(plain, target), _reaches(stopped, target)


def _reaches(repeats: Sequence[Sequence[float]], target: float) -> float:
    for place, bests in enumerate(zip(*repeats, strict=True), start=1):
        if statistics.median(bests) <= target:
            return float(place)
    return float("inf")


def tell(
    plain: Sequence[Sequence[float]], stopped: Sequence[Sequence[float]], count: int, options: argparse.Namespace
) -> None:
    target, slow, quick = speedup(plain, stopped)
    chance = random.Random(0)
    ratios = []
    for _ in range(options.draws):
        places = chance.choices(range(len(plain)), k=len(plain))
        _, long, short = speedup([plain[place] for place in places], [stopped[place] for place in places])
        ratios.append(long / short)
    ratios.sort()
    low, high = ratios[round(0.025 * len(ratios))], ratios[round(0.975 * len(ratios)) - 1]
    print(
        f"{count} configurations of {EPOCHS} epochs, {len(plain)} repeats, {options.workers} workers, {TRIALS} "
        "trials to their end"
    )
    print(
        f"target: an error of {target:.4f}, reached after {slow:g} units of time without stopping, {quick:g} with asha"
    )
    print(f"asha is {slow / quick:.1f} times sooner; 95 % of the bootstrap between {low:.1f} and {high:.1f}")
    for part in (0.1, 0.25, 0.5, 1.0):
        place = round(part * len(plain[0])) - 1
        print(
            f"best after {100 * part:>3.0f} % of the time: {statistics.median(curve[place] for curve in plain):.4f} "
            "without,"
            f" {statistics.median(curve[place] for curve in stopped):.4f} with asha"
        )
    print("per repeat, to the end of its own random search:", end=" ")
    own = sorted(
        _first(curve, curve[-1]) / _first(baseline, curve[-1]) for curve, baseline in zip(plain, stopped, strict=True)
    )
    print(
        f"median {statistics.median(own):.1f} times, quartiles {own[len(own) // 4]:.1f} and "
        f"{own[3 * len(own) // 4]:.1f}"
    )


def _first(bests: Sequence[float], target: float) -> float:
    return next((float(place) for place, best in enumerate(bests, start=1) if best <= target), float("inf"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=Path("/var/tmp/trainmaster-curves.jsonl"))
    parser.add_argument("--configurations", type=int, default=240)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--draws", type=int, default=DRAWS, help="Of the bootstrap.")
    options = parser.parse_args()
    if options.configurations < TRIALS:
        parser.error(f"--configurations: at least {TRIALS}, as many as are trained to their end")
    return options


if __name__ == "__main__":
    main()
