from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainmaster_train import report, steps
from trainmaster_train.steps import Step, StepTimer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timer(clock: Clock) -> StepTimer:
    return StepTimer(clock)


def of(timer: StepTimer) -> Step:
    assert timer.last is not None
    assert sum(timer.last.parts.values()) == pytest.approx(timer.last.seconds)
    return timer.last


def parts(timer: StepTimer) -> dict[str, float]:
    return {name: round(seconds, 9) for name, seconds in of(timer).parts.items() if seconds}


def elsewhere(call: object, *arguments: object) -> None:
    thread = threading.Thread(target=call, args=arguments)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_a_step_is_its_parts_and_lasts_from_end_to_end(timer: StepTimer, clock: Clock) -> None:
    def batches() -> Iterator[int]:
        for number in range(2):
            clock.wait(3)
            yield number

    for _ in timer.data(batches()):
        with timer.step():
            clock.wait(5)
            with timer.part("communication"):
                clock.wait(2)
        assert parts(timer)["data_wait"] == 3
        clock.wait(1)  # logging, say: it is the next step's
    assert timer.count == 2
    assert of(timer).seconds == 11
    assert parts(timer) == {"data_wait": 3, "compute": 5, "communication": 2, "other": 1}


def test_a_second_belongs_to_the_innermost_part(timer: StepTimer, clock: Clock) -> None:
    with timer.step(), timer.part("checkpoint"):
        clock.wait(1)
        with timer.part("communication"):
            clock.wait(2)
            timer.add("ps_wait", 0.5)

    assert parts(timer) == {"checkpoint": 1, "communication": 1.5, "ps_wait": 0.5}


def test_no_more_is_counted_than_has_passed(timer: StepTimer, clock: Clock) -> None:
    with timer.step():
        clock.wait(1)
        timer.add("ps_wait", 7)
        timer.claim("communication", 7)

    assert parts(timer) == {"ps_wait": 1}


def test_a_claim_is_taken_out_of_compute(timer: StepTimer, clock: Clock) -> None:
    with timer.step():
        clock.wait(5)
        elsewhere(timer.claim, "communication", 2.0)

    assert parts(timer) == {"compute": 3, "communication": 2}


def test_work_of_other_threads_is_overlapped(timer: StepTimer, clock: Clock) -> None:
    def pull() -> None:
        with timer.part("ps_wait"):
            clock.wait(4)

    with timer.step():
        clock.wait(1)
        elsewhere(timer.add, "communication", 0.5)
        elsewhere(pull)
        elsewhere(timer.add_bytes_sent, 10)
        elsewhere(timer.add_staleness, 3)

    assert parts(timer) == {"compute": 5}
    assert of(timer).overlapped == {"communication": 0.5, "ps_wait": 4}
    assert (of(timer).bytes_sent, of(timer).staleness) == (10, [3])


def test_without_blocks_the_calls_of_end_step_are_the_borders(timer: StepTimer, clock: Clock) -> None:
    clock.wait(50)  # imports, the first batch, …
    timer.add("ps_wait", 1)
    timer.end_step()
    assert timer.last is None
    clock.wait(2)
    timer.add("ps_wait", 0.5)
    timer.end_step()

    assert parts(timer) == {"compute": 1.5, "ps_wait": 0.5}


def test_a_part_across_the_border_of_two_steps_is_split(timer: StepTimer, clock: Clock) -> None:
    timer.end_step()
    with timer.part("checkpoint"):
        clock.wait(2)
        timer.end_step()
        assert parts(timer) == {"checkpoint": 2}
        clock.wait(3)
    timer.end_step()

    assert parts(timer) == {"checkpoint": 3}


def test_a_block_wins_over_hooks_and_inner_blocks(timer: StepTimer, clock: Clock) -> None:
    with timer.step():
        clock.wait(1)
        with timer.step():
            clock.wait(1)
        timer.end_step()
        clock.wait(1)

    assert timer.count == 1
    assert parts(timer) == {"compute": 3}


def test_a_failed_step_is_no_step_and_the_next_one_holds_its_time(timer: StepTimer, clock: Clock) -> None:
    with pytest.raises(RuntimeError), timer.step():
        clock.wait(1)
        raise RuntimeError
    assert timer.count == 0
    with timer.step():
        clock.wait(1)

    assert of(timer).seconds == 2


def test_a_hook_at_the_end_still_counts_for_the_step(timer: StepTimer, clock: Clock) -> None:
    remove = timer.at_end(lambda timer: timer.claim("communication", 1))
    with timer.step():
        clock.wait(3)
    remove()
    assert parts(timer) == {"compute": 2, "communication": 1}
    with timer.step():
        clock.wait(3)

    assert parts(timer) == {"compute": 3}


def test_an_unknown_part_is_refused_with_the_known_ones(timer: StepTimer) -> None:
    with pytest.raises(ValueError, match="'waiting' is not a part of a step; the parts are data_wait, compute"):
        timer.add("waiting", 1)


def test_means_are_reported_every_few_seconds_and_at_the_end(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMASTER_REPORT_FILE", str(tmp_path / "report"))
    monkeypatch.setattr(report, "has_reported_step", False)
    timer = StepTimer(clock, is_reported=True)
    for staleness in (1, 3, 8):
        with timer.step():
            clock.wait(steps.REPORT_EVERY_S / 2)
            timer.add("ps_wait", 0.25)
            timer.add_staleness(staleness)
            timer.add_bytes_sent(100)
            elsewhere(timer.add, "ps_wait", 0.5)
    timer.flush()
    timer.flush()
    report.progress(70)
    with timer.step():
        clock.wait(1)
    timer.flush()

    first, last, results, under = (json.loads(line) for line in (tmp_path / "report").read_text().splitlines())
    assert points(first) == (
        2,
        {
            "step_s": 1,
            "step_bytes_sent": 100,
            "step_data_wait_s": 0,
            "step_compute_s": 0.75,
            "step_communication_s": 0,
            "step_ps_wait_s": 0.25,
            "step_checkpoint_s": 0,
            "step_other_s": 0,
            "step_ps_wait_overlapped_s": 0.5,
            "staleness_mean": 2,
            "staleness_max": 3,
        },
    )
    step, values = points(last)
    assert (step, values["staleness_mean"]) == (3, 8)
    # From then on the steps are the script's: the platform counts what has none for the step told last.
    assert (results["step"], under["kind"], under["metrics"]["step_s"], under.get("step")) == (70, "progress", 1, None)


def points(line: Any) -> tuple[int, dict[str, float]]:
    """The step, and what was reported at it."""
    assert line["kind"] == "metrics"
    (step,) = {step for one in line["series"] for step in one["steps"]}
    return step, {one["name"]: value for one in line["series"] for value in one["values"]}


def test_one_timer_for_the_process() -> None:
    assert steps.timer() is steps.timer()
