"""Two of each on one PostgreSQL and one Redis: what is killed, rolled or missed is made good by the others."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import random
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.high_availability.plant import LEASE_S, START_S, Load, Plant, marks, new_plant
from tests.e2e.studies import study_story as story

pytestmark = marks

# Says that it began, works until it is told to end, and says so when a second one runs at the same time.
COUNTED = (
    'cd "$TRAINMASTER_OUTPUT_DIR"; echo began >> starts; mkdir running || touch TWICE; '
    "for step in $(seq {steps}); do echo $step > step; sleep 0.1; done; rmdir running"
)


def a_job(name: str, *, steps: int) -> dict[str, Any]:
    return {"name": name, "command": COUNTED.format(steps=steps), "workers": 1, "cpu": "10m", "memory": "16Mi"}


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with new_plant(tmp_path_factory.mktemp("ha") / "home") as plant:
        plant.start_all()
        yield plant


def test_whatever_is_killed_under_load_nothing_is_lost_doubled_or_stuck(plant: Plant) -> None:
    seed = int(os.environ.get("TRAINMASTER_CHAOS_SEED") or random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    rng = random.Random(seed)
    client = plant.client(tries=60)  # both APIs may be on their way up again at the same time
    wanted: list[str] = []

    def submit(number: int) -> None:
        name = f"load-{number}"
        client.submit(a_job(name, steps=rng.randrange(5, 40)))
        wanted.append(name)

    load = Load(submit, pause_s=0.4)
    load.start()
    names = ["api-1", "scheduler-1", "beat-1", "scheduler-2", "api-2", "beat-2"]
    rng.shuffle(names)
    for name in names:
        time.sleep(rng.uniform(0.3, 1.2))
        plant.kill(name)
        time.sleep(rng.uniform(0.0, 1.5))
        plant.start(name)
    plant.wait(lambda: all(plant.status(name, "ready") == 200 for name in names), "all are ready again", START_S)
    load.stop()
    assert not load.failures
    client.close()
    plant.wait(lambda: all(plant.states()[name] == "succeeded" for name in wanted), "all jobs succeed", 90)
    assert sorted(name for name in plant.states() if name.startswith("load-")) == sorted(wanted)
    assert {plant.attempts()[name] for name in wanted} == {1}
    for name in wanted:
        assert (plant.output(name) / "starts").read_text() == "began\n", name
        assert not (plant.output(name) / "TWICE").exists(), name
    ends = plant.rows("select j.name, count(*) n from events e join jobs j on j.id = e.job_id "
                      "where e.kind = 'job.succeeded' and j.name like 'load-%' group by j.name")  # fmt: skip
    assert {row.name: row.n for row in ends} == dict.fromkeys(wanted, 1)


def test_a_study_goes_on_whatever_is_killed(plant: Plant, tmp_path: Path) -> None:
    seed = int(os.environ.get("TRAINMASTER_CHAOS_SEED") or random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    rng = random.Random(seed)
    client = plant.client(tries=60)
    out, enough = tmp_path / "out", tmp_path / "enough"
    study = story.begin(client, out, enough, tmp_path / "code")
    # Each scheduler twice: the one that is left goes on with the other's studies once its leases are over.
    names = ["api-1", "scheduler-1", "beat-1", "scheduler-2", "api-2", "beat-2", "scheduler-1", "scheduler-2"]
    rng.shuffle(names)
    for name in names:
        begun = story.begun(out)
        plant.wait(
            lambda known=begun: story.begun(out) >= min(story.TRIALS, known + 1), f"a trial begins before {name}"
        )
        time.sleep(rng.uniform(0.0, 1.5))
        plant.kill(name)
        time.sleep(rng.uniform(0.0, 1.5))
        plant.start(name)
    assert client.get_study(study).state == "running"
    enough.touch()
    plant.wait(lambda: client.get_study(study).state != "running", "the study is over", 90)
    story.check(client, study, out, f"seed {seed}")
    client.close()
    plant.wait(lambda: all(plant.status(name, "ready") == 200 for name in names), "all are ready again", START_S)


def test_one_of_two_beats_leads_and_the_other_follows_it(plant: Plant) -> None:
    def leaders() -> list[str]:
        return [name for name in ("beat-1", "beat-2") if plant.metrics(name)["trainmaster_beat_is_leader"] == 1]

    def rings(name: str) -> float:
        return plant.metrics(name)['trainmaster_beat_messages_total{task="trainmaster.tick"}']

    plant.wait(lambda: len(leaders()) == 1, "one beat leads", 2 * LEASE_S)
    (first,) = leaders()
    (second,) = {"beat-1", "beat-2"} - {first}
    plant.kill(first)
    took_s = plant.wait(
        lambda: plant.metrics(second)["trainmaster_beat_is_leader"] == 1, "the other leads", 3 * LEASE_S
    )
    assert took_s < 2 * LEASE_S
    plant.start(first)
    plant.wait(lambda: plant.status(first, "ready") == 200, "the first is back")
    assert leaders() == [second]
    plant.wait(lambda: rings(second) >= 2, "the leader rings")
    assert 'trainmaster_beat_messages_total{task="trainmaster.tick"}' not in plant.metrics(first)
    assert plant.end(second) == 0
    # Asked politely it gives the lease back: the other need not wait for its end, only for its own next look.
    plant.wait(lambda: leaders_of(plant, first), "the first leads again", LEASE_S)
    plant.start(second)
    plant.wait(lambda: plant.status(second, "ready") == 200, "the second is back")


def leaders_of(plant: Plant, name: str) -> bool:
    return plant.metrics(name)["trainmaster_beat_is_leader"] == 1


class Balancer:
    """Spreads requests over the APIs that say that they are ready; tries another one only when nobody listens."""

    def __init__(self, plant: Plant) -> None:
        self.plant = plant
        self.ready = dict(plant.apis)
        self.turns = itertools.count()
        self.clients = {
            name: httpx.Client(
                base_url=f"http://127.0.0.1:{port}/api/v1",
                headers={"Authorization": f"Bearer {plant.token}"},
                timeout=30,
                trust_env=False,
            )
            for name, port in plant.apis.items()
        }
        self.is_stopping = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        for _ in range(200):
            names = sorted(self.ready) or sorted(self.plant.apis)
            name = names[next(self.turns) % len(names)]
            try:
                return self.clients[name].request(method, path, **options)
            except httpx.ConnectError:
                time.sleep(0.05)
        raise AssertionError("no API took the request")

    def _look(self) -> None:
        while not self.is_stopping.wait(0.2):
            for name, port in self.plant.apis.items():
                if self.plant.status(name, "ready") == 200:
                    self.ready[name] = port
                else:
                    self.ready.pop(name, None)

    def close(self) -> None:
        self.is_stopping.set()
        self.thread.join(10)
        for client in self.clients.values():
            client.close()


def test_a_rolling_restart_loses_no_request_and_no_job(plant: Plant) -> None:
    balancer = Balancer(plant)
    answered: list[str] = []
    statuses: dict[int, int] = {}
    lock = threading.Lock()

    def submit(number: int, worker: int = 0) -> None:
        name = f"roll-{worker}-{number}"
        answer = balancer.request("POST", "/jobs", json={"spec": a_job(name, steps=3)})
        note(answer)
        if answer.status_code == 201:
            answered.append(name)

    def note(answer: httpx.Response) -> None:
        with lock:
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1

    def read(_number: int) -> None:
        note(balancer.request("GET", "/jobs?limit=5"))

    upload = SlowUpload(plant)
    follower = Follower(plant, plant.apis["api-1"])
    loads = [
        Load(lambda n: submit(n, 0), pause_s=0.8), Load(lambda n: submit(n, 1), pause_s=0.8),
        Load(read), Load(read), Load(read),
    ]  # fmt: skip
    for thread in (*loads, upload, follower):
        thread.start()
    time.sleep(1.0)
    for name in ("api-1", "api-2", "scheduler-1", "scheduler-2"):
        began = time.monotonic()
        plant.processes[name].terminate()
        if name == "api-1":
            # It says that it leaves while it still answers.
            plant.wait(lambda: plant.status("api-1", "ready") == 503, "it is not ready any more", 3)
            assert plant.status("api-1", "live") == 200
        assert plant.wait_for_end(name) == 0, name
        print(f"{name} ended within {time.monotonic() - began:.2f} s")
        plant.start(name)
        plant.wait(lambda name=name: plant.status(name, "ready") == 200, f"{name} is ready again", START_S)
    for load in loads:
        load.stop()
    follower.join(20)
    upload.join(20)
    balancer.close()
    print(f"requests by status: {statuses}")
    assert [failure for load in loads for failure in load.failures] == []
    assert set(statuses) == {200, 201}
    assert upload.status == 200, upload.failure
    assert follower.is_clean, follower.failure
    plant.wait(lambda: all(plant.states()[name] == "succeeded" for name in answered), "all jobs succeed", 90)
    assert sorted(name for name in plant.states() if name.startswith("roll-")) == sorted(answered)
    assert {plant.attempts()[name] for name in answered} == {1}
    assert not plant.errors()


class SlowUpload(threading.Thread):
    """Sends an archive to api-1 in the time of a whole drain and more."""

    def __init__(self, plant: Plant) -> None:
        super().__init__(daemon=True)
        self.plant = plant
        self.status, self.failure = 0, ""

    def run(self) -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            info = tarfile.TarInfo("noise")
            info.size = 120_000
            tar.addfile(info, io.BytesIO(random.Random(1).randbytes(info.size)))
        whole = archive.getvalue()
        pieces = [whole[begin : begin + 4096] for begin in range(0, len(whole), 4096)]
        digest = f"sha256:{hashlib.sha256(whole).hexdigest()}"

        def slowly() -> Iterator[bytes]:
            for piece in pieces:
                time.sleep(0.12)
                yield piece

        port = self.plant.apis["api-1"]
        try:
            size = sum(map(len, pieces))
            self.plant.ask("POST", f"/archives?digest={digest}&size={size}", port=port).raise_for_status()
            self.status = self.plant.ask("PUT", f"/archives/{digest}?offset=0", port=port, content=slowly()).status_code
        except httpx.HTTPError as error:
            self.failure = repr(error)


class Follower(threading.Thread):
    """Follows all events at one API until the stream ends."""

    def __init__(self, plant: Plant, port: int) -> None:
        super().__init__(daemon=True)
        self.url = f"http://127.0.0.1:{port}/api/v1/events?follow=true&after={2**62}"
        self.headers = {"Authorization": f"Bearer {plant.token}"}
        self.is_clean, self.failure = False, ""

    def run(self) -> None:
        try:
            with httpx.stream("GET", self.url, headers=self.headers, timeout=30, trust_env=False) as answer:
                for _ in answer.iter_bytes():
                    pass
            self.is_clean = True  # a break in the middle raises
        except httpx.HTTPError as error:
            self.failure = repr(error)


def test_each_process_tells_prometheus_of_itself(plant: Plant) -> None:
    with suppress(KeyError):
        api = plant.metrics("api-1")
        assert api["trainmaster_database_up"] == 1
        assert api["trainmaster_tick_done_age_seconds"] < 30
        assert api["trainmaster_beat_lease_expired_seconds"] == 0
        for name in ("scheduler-1", "scheduler-2"):
            reported = plant.metrics(name)
            assert (reported["trainmaster_database_up"], reported["trainmaster_broker_up"]) == (1, 1)
            plant.wait(lambda name=name: plant.metrics(name)["trainmaster_beat_missed"] == 0, f"{name} hears the beat")
            assert reported['trainmaster_tasks_total{outcome="done",task="trainmaster.tick"}'] > 0
        return
    pytest.fail("a metric is missing")
