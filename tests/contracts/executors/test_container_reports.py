"""Containers whose API is away when their job ends: they end as soon as ever, and what they told is in their output."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from core.storage.spooled_reports import ReplicaStart, place_of, read_spool
from core.storage.tree import Tree
from executors.base import Phase
from tests.contracts.executors.conftest import remove

TOKEN = "tma_x"
LATER = 1500  # steps
PRINTS = "for n in range(1, 4): print(f'step={n} loss={1 / n}', flush=True)"


@pytest.fixture(
    params=[
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("kubernetes", marks=(pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes"))),
    ]
)
def bench(request):
    return request.getfixturevalue(f"{request.param}_bench")


@pytest.fixture
def host():
    """An address of this machine that containers reach."""
    given = os.environ.get("TRAINMASTER_TEST_POD_HOST")
    if given:
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent: only the way is looked up
        return probe.getsockname()[0]


@pytest.fixture
def away(host):
    """The port of an API that is away: it is bound, and no process listens on it."""
    with socket.socket() as holding:
        holding.bind((host, 0))
        yield f"http://{host}:{holding.getsockname()[1]}"


@pytest.fixture
def slow_api(host):
    """One that takes a second for each report, and three for later ones; ``steps`` came."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            items = json.loads(body)["items"]
            time.sleep(1.0 if len(server.steps) < LATER else 3.0)  # a busy machine takes its time to stop it
            server.steps += [item["data"]["step"] for item in items if "step" in item["data"]]
            answer = json.dumps({"acked": items[-1]["seq"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # who is ended hangs up
    server.steps = []
    server.url = f"http://{host}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def preserved(bench, order):
    """Items that the replica kept in its output."""
    folder, key = place_of(order.key.job_id, order.attempt_number), order.key
    start = ReplicaStart(key.role, key.index, key.generation)
    return [item for entry_ in read_spool(Tree(bench.output), folder, start, TOKEN) for item in entry_.report().items]


def losses(items):
    return [
        (step, value)
        for item in items
        if item.kind == "metrics"
        for entry_ in item.data["series"]
        if entry_["name"] == "loss"
        for step, value in zip(entry_["steps"], entry_["values"], strict=True)
    ]


@pytest.mark.parametrize("code", [0, 3])
def test_what_a_job_reported_before_it_ended_in_an_outage_is_in_its_output(bench, away, code):
    order = bench.order(command=bench.python(f"{PRINTS}\nraise SystemExit({code})"), api_url=away, token=TOKEN)
    bench.executor.create(order)
    observation = bench.ended(order)
    assert (observation.phase is Phase.SUCCEEDED, observation.exit.exit_code) == (code == 0, code)
    remove(bench.executor, order.key.attempt_id)  # which leaves nothing, as the bench looks
    assert losses(preserved(bench, order)) == [(n, 1 / n) for n in range(1, 4)]


def test_what_a_job_reported_before_it_was_killed_in_an_outage_is_in_its_output(bench, away):
    order = bench.order(command=bench.python(f"{PRINTS}\nimport time; time.sleep(1000)"), api_url=away, token=TOKEN)
    bench.executor.create(order)
    bench.wait_for(lambda: losses(preserved(bench, order)), what="the first look at what cannot be sent")
    remove(bench.executor, order.key.attempt_id)
    assert losses(preserved(bench, order)) == [(n, 1 / n) for n in range(1, 4)]


def test_a_stop_ends_a_container_that_still_sends(bench, slow_api):
    flood = """
        import json, os
        with open(os.environ["TRAINMASTER_REPORT_FILE"], "a") as stream:
            for step in range(10_000):
                stream.write(json.dumps({"kind": "progress", "step": step}) + chr(10))
    """
    order = bench.order(command=bench.python(flood), api_url=slow_api.url, token=TOKEN)
    bench.executor.create(order)
    bench.wait_for(lambda: len(slow_api.steps) > LATER, what="some of the twenty reports")
    bench.executor.stop(order.key, grace=timedelta(seconds=30))
    observation = bench.ended(order)
    assert (observation.phase, observation.exit.exit_code) == (Phase.SUCCEEDED, 0)  # it had ended by itself
    left = [item.data["step"] for item in preserved(bench, order) if "step" in item.data]
    assert len(left) > 1000
    assert sorted({*slow_api.steps, *left}) == list(range(10_000))
