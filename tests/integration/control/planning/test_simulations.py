"""Simulations over HTTP: begun by the API, worked on in a process of a scheduler, taken up again when that one dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import select
from starlette.testclient import TestClient

from api.app.factory import create_app
from core.db.bootstrap import prepare_home, read_token
from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories.simulations import LOST_AFTER
from core.db.tables import Job, Node
from core.settings import Settings
from scheduler.control.questions.simulations import SimulationRunner
from scheduler.control.questions.what_if import load_what_if, run_what_if


class NoWakeup:
    def notify(self, topic: str, key: str = "") -> None:
        pass


@pytest.fixture
def worker(plane, sessions) -> SimulationRunner:
    """A scheduler that works on them in this process."""

    def work(ask):
        try:
            with unit_of_work(sessions, read_only=True) as session:
                trial = load_what_if(session, ask, plane.engine.now)
        except ValueError as error:
            field = str(error).partition(":")[0]
            yield {"answer": {"error": {"code": "invalid_request", "sentence": str(error), "field": field}}}
            return
        yield {"answer": run_what_if(trial)}

    return SimulationRunner(plane.control, work)


@pytest.fixture
def app(settings: Settings, sessions: SessionFactory, plane) -> FastAPI:
    prepare_home(sessions, settings, plane.engine.now)
    return create_app(settings, sessions=sessions, wakeup=NoWakeup(), clock=lambda: plane.engine.now)


@pytest.fixture
def client(app: FastAPI, settings: Settings) -> Iterator[TestClient]:
    token = read_token(settings)
    with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as client:
        yield client


def test_a_policy_is_tried_on_the_platform_s_own_history(plane, client, worker, sessions) -> None:
    began = client.post("/api/v1/simulations", json={"days": 7}).json()
    worker.work()
    nothing = client.get(f"/api/v1/simulations/{began['id']}")
    assert (nothing.status_code, nothing.json()["field"]) == (422, "days")
    for number in range(6):
        plane.submit(f"sweep-{number}", gpus=2)
    with unit_of_work(sessions) as session:
        for number, job in enumerate(session.scalars(select(Job).order_by(Job.id))):
            job.state, job.run_s, job.finished_at = "succeeded", 600.0 + number, plane.engine.now
    began = client.post(
        "/api/v1/simulations",
        json={"policy": {"order": "fifo"}, "cluster": {"more_nodes": 2, "like": "node-0"}, "days": 7},
    )
    assert began.status_code == 202, began.text
    worker.work()
    found = client.get(f"/api/v1/simulations/{began.json()['id']}").json()
    assert found["state"] == "done"
    before, after = found["result"]["before"], found["result"]["after"]
    assert (before["finished"], after["finished"]) == (6, 6)
    assert after["wait_mean_s"] < before["wait_mean_s"]
    assert found["result"]["sentences"][0].startswith("A job would have waited ")
    for body, field in (
        ({"policy": {"ordre": "fifo"}}, None),
        ({"cluster": {"more_nodes": 1, "like": "nowhere"}}, "cluster.like"),
        ({"days": 0}, "days"),
    ):
        wrong = client.post("/api/v1/simulations", json=body)
        if wrong.status_code == 202:
            worker.work()
            wrong = client.get(f"/api/v1/simulations/{wrong.json()['id']}")
        assert wrong.status_code == 422, wrong.text
        assert field is None or wrong.json()["field"] == field
    assert client.get("/api/v1/simulations/none").status_code == 404


def test_both_runs_have_the_same_time_and_jobs_that_never_run_come_first(plane, client, worker, sessions) -> None:
    def tried(**cluster):
        began = client.post("/api/v1/simulations", json={"cluster": cluster, "days": 7}).json()
        worker.work()
        found = client.get(f"/api/v1/simulations/{began['id']}").json()["result"]
        return found["before"], found["after"], found["sentences"]

    with unit_of_work(sessions, read_only=True) as session:
        nodes = sorted(session.scalars(select(Node.name)))
    plane.submit("huge", gpus=8 * len(nodes) + 8)  # keeps the planner looking for as long as it is asked to
    finished_jobs(plane, sessions, 6)
    before, after, reported = tried(more_nodes=2, like="node-0")
    assert reported[0].startswith(
        "1 of the 7 jobs would be done neither as things are nor with the changes: huge. huge: "
    )
    assert reported[1].startswith("A job would have waited ")
    assert (before["finished"], before["makespan_s"], after["makespan_s"]) == (6, None, None)
    gpus = {"before": before["gpu_allocation"] * len(nodes), "after": after["gpu_allocation"] * (len(nodes) + 2)}
    assert gpus["after"] == pytest.approx(gpus["before"])  # the same work in the same time
    assert before["gpus_over_time"][-1][0] == after["gpus_over_time"][-1][0] < 7200

    before, after, reported = tried(without=nodes)
    assert reported[0].startswith(
        "6 of the 7 jobs would never be done with the changes: sweep-0, sweep-1, sweep-2 and 3 more. "
    )
    assert "sweep-0: " in reported[0]
    assert not any("waited" in sentence or "in use" in sentence for sentence in reported)
    assert before["wait_mean_s"] is not None
    nothing = ("wait_mean_s", "wait_p99_s", "jct_mean_s", "makespan_s", "gpu_allocation", "cpu_allocation")
    assert [after[name] for name in nothing] == [None] * len(nothing)


def test_equal_figures_are_not_reported_as_changes(plane, client, worker, sessions) -> None:
    finished_jobs(plane, sessions, 1)
    address = begin(client)
    worker.work()
    found = client.get(address).json()["result"]
    assert found["sentences"] == [
        "A job would have waited 0.0 s on the average, with the changes as without them.",
        "It would have been done 10 m 00 s after its submission, with the changes as without them.",
        *found["sentences"][2:],
    ]
    assert not any("instead of" in sentence for sentence in found["sentences"])
    assert found["since"][:10] == plane.engine.now.isoformat()[:10]  # of the first job, not of the days asked for


def finished_jobs(plane, sessions, count: int) -> None:
    for number in range(count):
        plane.submit(f"sweep-{number}", gpus=2)
    with unit_of_work(sessions) as session:
        for number, job in enumerate(session.scalars(select(Job).order_by(Job.id))):
            job.state, job.run_s, job.finished_at = "succeeded", 600.0 + number, plane.engine.now


def begin(client: TestClient) -> str:
    began = client.post("/api/v1/simulations", json={"policy": {"order": "fifo"}, "days": 7})
    assert began.status_code == 202, began.text
    return f"/api/v1/simulations/{began.json()['id']}"


def test_a_simulation_of_a_dead_scheduler_is_taken_over_within_seconds(plane, client, worker) -> None:
    address = begin(client)

    def dies(_ask):
        yield {"doing": "thinks"}
        during.append(client.get(address).json())
        raise KeyboardInterrupt

    during: list[dict] = []
    with pytest.raises(KeyboardInterrupt):
        SimulationRunner(plane.control, dies).work()
    assert (during[0]["state"], during[0]["sentence"]) == ("running", "It thinks.")
    other = SimulationRunner(replace(plane.control, holder="other"), worker._work)
    other.work()
    assert client.get(address).json()["state"] == "running"  # whoever has it may still be there
    plane.engine.now += LOST_AFTER + timedelta(seconds=1)
    assert client.get(address).json()["sentence"].startswith("The scheduler that ran it is gone")
    other.work()
    assert client.get(address).status_code == 422  # no job has ended: an answer


def test_a_scheduler_of_the_same_name_takes_up_what_it_left_at_once_and_not_for_ever(plane, client) -> None:
    address, tries = begin(client), []

    def dies(_ask):
        tries.append(1)
        raise KeyboardInterrupt
        yield {}

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            SimulationRunner(plane.control, dies).work()
    SimulationRunner(plane.control, dies).work()
    reported = client.get(address)
    assert (reported.status_code, len(tries)) == (500, 3)
    assert "ended 3 times while it worked on this simulation" in reported.json()["detail"]


def test_a_stopped_simulation_is_given_back_without_a_counted_try(plane, client) -> None:
    address = begin(client)

    def work(_ask):
        yield {}
        simulations.close()
        yield {}

    simulations = SimulationRunner(plane.control, work)
    simulations.work()
    assert client.get(address).json()["state"] == "waiting"


def test_a_killed_process_is_reported_at_once_and_the_next_simulation_works(plane, client, sessions) -> None:
    finished_jobs(plane, sessions, 1)
    address, simulations = begin(client), SimulationRunner(plane.control)
    simulations.start()
    try:
        wait_until(lambda: children_of(os.getpid()), bool)
        os.kill(children_of(os.getpid())[0], signal.SIGKILL)
        reported = wait_until(lambda: client.get(address), lambda reported: reported.status_code != 200)
        assert (reported.status_code, reported.json()["code"]) == (500, "internal")
        assert "ran out of memory" in reported.json()["detail"]
        address = begin(client)
        simulations.start()
        reported = wait_until(lambda: client.get(address).json(), lambda reported: reported["state"] == "done")
        assert reported["result"]["jobs"] == 1
    finally:
        simulations.close()


def test_nothing_outlives_a_scheduler_that_is_killed() -> None:
    """The process is in the middle of its work: it waits for a database that takes its time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        requested = {
            "url": f"postgresql://a@127.0.0.1:{silent.getsockname()[1]}/a",
            "ask": {"days": 1},
            "now": "2026-01-01",
        }
        script = (
            "import subprocess, sys, time\n"
            "pipe = subprocess.PIPE\n"
            "child = subprocess.Popen([sys.executable, '-m', 'scheduler.simulation_worker'], stdin=pipe, stdout=pipe)\n"
            "child.stdin.write(sys.argv[1].encode() + b'\\n')\n"
            "child.stdin.flush()\n"
            "print(child.pid, child.stdout.readline(), flush=True)\n"
            "time.sleep(60)\n"
        )
        with subprocess.Popen([sys.executable, "-c", script, json.dumps(requested)], stdout=subprocess.PIPE) as starter:
            assert starter.stdout is not None
            child = int(starter.stdout.readline().split()[0])
            assert is_alive(child)
            starter.kill()
        wait_until(lambda: is_alive(child), lambda alive: not alive, within_s=2.0)


def wait_until(look, is_enough, within_s: float = 120.0):
    until_s = time.monotonic() + within_s
    while not is_enough(found := look()):
        assert time.monotonic() < until_s, found
        time.sleep(0.05)
    return found


def children_of(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                f"\nPPid:\t{pid}\n" in (folder / "status").read_text()
                and b"scheduler.simulation_worker" in (folder / "cmdline").read_bytes()
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
