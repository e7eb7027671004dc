"""The database or the broker away, or there and frozen: requests are told so, training goes on, and all is made good.

``TRAINMASTER_TEST_OUTAGE_S`` makes the outages longer than the few seconds that suffice to meet every time-out.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import httpx
import pytest

from tests.e2e.high_availability.plant import Load, Plant, marks, new_plant

pytestmark = marks

OUTAGE_S: Final = float(os.environ.get("TRAINMASTER_TEST_OUTAGE_S", "8"))
# What a client waits at most for its 503, and a probe for its answer: four seconds and two by design, the rest is for
# machines that are busy with other things.
ANSWER_S: Final = 9.0
PROBE_S: Final = 6.0
CAUGHT_UP_S: Final = 30.0
# Nothing waits for it: a worker that hears no beat keeps its own time.
HEARD_S: Final = 90.0
# A replica that has failed to report tries again after this time at the latest.
REPORT_S: Final = 30.0

# Trains until it is told that it is enough; reports each step, and a word when it is asked for one.
STEPS = """
cd "$TRAINMASTER_OUTPUT_DIR"; n=0
while [ ! -e enough ]; do
    n=$((n+1)); echo $n > step; sleep 0.1
    echo "{\\"kind\\": \\"progress\\", \\"step\\": $n}" >> "$TRAINMASTER_REPORT_FILE"
    if [ -e say ]; then rm say; echo '{"kind": "event", "reason": "nobody heard me"}' >> "$TRAINMASTER_REPORT_FILE"; fi
done
"""


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with new_plant(tmp_path_factory.mktemp("outage") / "home") as plant:
        plant.start_all()
        yield plant


def submit(plant: Plant, name: str, command: str) -> httpx.Response:
    spec = {"name": name, "command": command, "workers": 1, "cpu": "10m", "memory": "16Mi"}
    return plant.ask("POST", "/jobs", json={"spec": spec})


def step_of(plant: Plant, name: str) -> int:
    path = plant.output(name) / "step"
    if not path.exists():
        return 0
    while not (text := path.read_text()):  # the script is writing the next number
        time.sleep(0.01)
    return int(text)


def step_in_database(plant: Plant, name: str) -> int:
    (row,) = plant.rows("select r.progress from replicas r join jobs j on j.id = r.job_id where j.name = :n", n=name)
    return int(row.progress.get("step") or 0)


def during(outage: Callable[[], None], mend: Callable[[], None], plant: Plant, check: Callable[[], None]) -> None:
    """``check`` again and again through an outage."""
    outage()
    try:
        deadline = time.monotonic() + OUTAGE_S
        while time.monotonic() < deadline:
            check()
            time.sleep(0.3)
    finally:
        mend()


@pytest.mark.parametrize("how", ["cut", "freeze"])
def test_without_its_database_the_platform_says_so_and_training_goes_on(plant: Plant, how: str) -> None:
    long, short = f"long-{how}", f"short-{how}"
    assert submit(plant, long, STEPS).status_code == 201
    assert submit(plant, short, STEPS).status_code == 201
    plant.wait(lambda: plant.states()[long] == plant.states()[short] == "running", "both run")
    processes = {name: process.pid for name, process in plant.processes.items()}
    output, long_output = plant.output(short), plant.output(long)
    printed: list[float] = []
    before = step_of(plant, long)
    follower = Follower(plant, long)
    follower.start()
    # More at once than the API has threads: a database that hangs must not take them all from who asks how it is.
    crowd = [Load(lambda _: impatient(plant), pause_s=0.5) for _ in range(25)]
    for load in crowd:
        load.start()
    slowest = {"refused": 0.0, "ready": 0.0, "live": 0.0}
    began = time.monotonic()

    def look() -> None:
        for name, path, wanted in (("refused", "/jobs", 503), ("ready", "/ready", 503), ("live", "/live", 200)):
            requested = time.monotonic()
            answer = plant.ask("GET", path)
            slowest[name] = max(slowest[name], time.monotonic() - requested)
            if requested - began > 3.0:  # what the last connection had in its hands may still come
                assert answer.status_code == wanted, (name, answer.text)
                if wanted == 503:
                    assert answer.headers["retry-after"] == "2"
        (output / "enough").touch()  # it ends while nobody can write that down
        if not printed:
            printed.append(time.monotonic())
            (long_output / "say").touch()

    try:
        during(getattr(plant.database, how), plant.database.mend, plant, look)
        mended = time.monotonic()
    finally:
        for load in crowd:
            load.stop()
    print(f"{how}: slowest answers during {OUTAGE_S:.0f} s: { {k: round(v, 2) for k, v in slowest.items()} }")
    assert slowest["refused"] < ANSWER_S
    assert slowest["live"] < PROBE_S
    assert slowest["ready"] < PROBE_S
    after = step_of(plant, long)
    assert after > before + 10 * OUTAGE_S / 4, "it trains on"
    plant.wait(lambda: all(plant.status(name, "ready") == 200 for name in processes), "all are ready", CAUGHT_UP_S)
    ready_s = time.monotonic() - mended
    plant.wait(lambda: plant.states()[short] == "succeeded", "the end is written", CAUGHT_UP_S)
    ended_s = time.monotonic() - mended
    assert submit(plant, f"next-{how}", "true").status_code == 201
    plant.wait(lambda: plant.states()[f"next-{how}"] == "succeeded", "a new job runs", CAUGHT_UP_S)
    reported_s = plant.wait(
        lambda: step_in_database(plant, long) >= after, "its reports arrive", CAUGHT_UP_S + REPORT_S
    )
    words = plant.rows("select e.kind from events e join jobs j on j.id = e.job_id "
                       "where j.name = :n and e.reason like '%nobody heard me%'", n=long)  # fmt: skip
    assert [word.kind for word in words] == ["train.note"], "what was said is told once"
    print(
        f"{how}: ready {ready_s:.1f} s, end written {ended_s:.1f} s, all reports there "
        f"{time.monotonic() - mended:.1f} s after the return (waited {reported_s:.1f} s for them)"
    )
    assert {name: process.pid for name, process in plant.processes.items()} == processes
    assert plant.alive() == set(processes), "nothing has ended"
    assert plant.states()[long] == "running"
    assert plant.attempts()[long] == 1
    (plant.output(long) / "enough").touch()
    plant.wait(lambda: plant.states()[long] == "succeeded", "the long one ends")
    follower.join(30)
    assert follower.is_reported, follower.failure


def impatient(plant: Plant) -> None:
    """A client of its own; what it gets is another's matter."""
    plant.ask("GET", "/jobs?limit=1")


class Follower(threading.Thread):
    """Follows a job's states through the SDK, over whatever comes."""

    def __init__(self, plant: Plant, job: str) -> None:
        super().__init__(daemon=True)
        # The outage may come before its stream is open for the first time: then the number of tries counts.
        self.client = plant.client(tries=10 + int(OUTAGE_S), stream_patience_s=OUTAGE_S + 60)
        self.job = job
        self.is_reported, self.failure = False, ""

    def run(self) -> None:
        try:
            self.is_reported = self.client.job(self.job).wait(timeout_s=OUTAGE_S + 120).state == "succeeded"
        except Exception as error:  # noqa: BLE001 - the test shows it
            self.failure = repr(error)
        finally:
            self.client.close()


@pytest.mark.parametrize("how", ["cut", "freeze"])
def test_without_its_broker_the_platform_takes_jobs_and_runs_them(plant: Plant, how: str) -> None:
    processes = {name: process.pid for name, process in plant.processes.items()}
    submitted: list[str] = []
    slowest_s = 0.0

    def look() -> None:
        nonlocal slowest_s
        name = f"ringless-{how}-{len(submitted)}"
        requested = time.monotonic()
        assert submit(plant, name, "true").status_code == 201
        slowest_s = max(slowest_s, time.monotonic() - requested)
        submitted.append(name)
        assert plant.status("api-1", "ready") == 200
        time.sleep(0.5)

    during(getattr(plant.broker, how), plant.broker.mend, plant, look)
    mended = time.monotonic()
    done_before = sum(plant.states()[name] == "succeeded" for name in submitted)
    plant.wait(lambda: all(plant.states()[name] == "succeeded" for name in submitted), "all succeed", CAUGHT_UP_S)
    print(
        f"{how}: slowest submission {slowest_s:.2f} s; {done_before} of {len(submitted)} jobs had ended before the "
        f"return, the others {time.monotonic() - mended:.1f} s after it"
    )
    assert slowest_s < ANSWER_S
    assert {plant.attempts()[name] for name in submitted} == {1}
    assert plant.alive() == set(processes)
    heard = [
        lambda name=name: plant.metrics(name)["trainmaster_beat_missed"] == 0 for name in ("scheduler-1", "scheduler-2")
    ]
    took_s = max(plant.wait(holds, "beat is heard again", HEARD_S) for holds in heard)
    print(f"{how}: beat heard again {took_s:.1f} s later")
    more = itertools.count()

    def has_rung() -> bool:
        # As its last ring went. It rings where it has something to do: the other may have done it all since.
        if plant.metrics("scheduler-1")["trainmaster_broker_up"] == 1:
            return True
        assert submit(plant, f"rung-{how}-{next(more)}", "true").status_code == 201
        time.sleep(1.0)
        return False

    plant.wait(has_rung, "it has rung again", HEARD_S)
