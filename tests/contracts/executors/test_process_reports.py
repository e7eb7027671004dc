"""The runtime's reports over real HTTP, read with the server's own wire models."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from trainmaster.wire.metrics import Report, ReportAnswer

from core.domain.errors import ExecutorTryAgain
from core.storage.spooled_reports import ReplicaStart, place_of, read_spool
from core.storage.tree import Tree
from executors.base import Phase
from executors.process import ProcessExecutor
from tests.contracts.executors.conftest import remove


@pytest.fixture
def bench(process_bench):
    return process_bench


@pytest.fixture
def api():
    """A server that takes reports; ``api.reports`` are what came, ``api.tokens`` with what."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            time.sleep(server.takes_s)
            report = Report.model_validate_json(body)
            server.reports.append((self.path, report))
            server.tokens.add(self.headers["Authorization"])
            answer = ReportAnswer(acked=report.items[-1].seq).model_dump_json().encode()
            if server.has_ended:
                answer = b'{"code": "attempt_ended"}'
            self.send_response(410 if server.has_ended else 200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # a runtime that was killed hangs up
    server.reports, server.tokens = [], set()
    server.has_ended = False
    server.takes_s = 0.0
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def away():
    """The port of an API that is away: it is bound, and no process listens on it."""
    with socket.socket() as holding:
        holding.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holding.getsockname()[1]}"


def items(api):
    return [item for _, report in api.reports for item in report.items]


WRITES = """
    import json, os
    with open(os.environ["TRAINMASTER_REPORT_FILE"], "a") as stream:
        for step in range(3):
            stream.write(json.dumps({"kind": "progress", "step": step, "metrics": {"loss": 0.5}}) + "\\n")
        stream.write(json.dumps({"kind": "checkpoint", "path": "checkpoints/step-2", "step": 2}))
"""


def test_a_replica_of_an_attempt_that_has_ended_ends_and_says_why(bench, api):
    api.has_ended = True
    order = bench.order(command="sleep 1000", api_url=api.url, token="tma_x")
    bench.executor.create(order)
    assert bench.ended(order).exit.sentence.startswith("The platform says that this attempt has ended")
    assert "this attempt has ended" in bench.log(order)


def test_what_a_short_job_reports_arrives_though_it_has_ended(bench, api):
    order = bench.order(command=bench.python(WRITES), api_url=api.url, token="tma_att.mac", role="chief", index=0)
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED
    bench.wait_for(lambda: any(item.kind == "checkpoint" for item in items(api)))
    reported = [item for item in items(api) if item.kind not in ("heartbeat", "metrics")]
    assert [item.kind for item in reported] == ["progress"] * 3 + ["checkpoint"]
    assert [item.seq for item in items(api)] == list(range(1, len(items(api)) + 1))
    assert reported[-1].data == {"path": "checkpoints/step-2", "step": 2}
    path, report = api.reports[0]
    assert (path, report.role, report.index, report.generation) == ("/api/v1/runtime/report", "chief", 0, 1)
    assert api.tokens == {"Bearer tma_att.mac"}


def test_a_job_that_says_nothing_is_known_to_live(bench, api):
    order = bench.order(command="sleep 1000", api_url=api.url, token="tma_x")
    bench.executor.create(order)
    bench.wait_for(lambda: [item.kind for item in items(api)] == ["heartbeat"])


def test_a_running_job_reports_to_where_the_api_has_moved(bench, api, away):
    order = bench.order(command="sleep 1000", api_url=away, token="tma_x")
    bench.executor.create(order)
    bench.until(order, lambda o: o.phase is Phase.RUNNING)
    ProcessExecutor(bench.run_dir, api_url=api.url)  # the platform starts again, at another port
    bench.wait_for(lambda: [item.kind for item in items(api)][:1] == ["heartbeat"])


def test_the_log_of_a_talkative_job_is_bounded(make_process_bench):
    bench = make_process_bench("short", log_limit_bytes=2**17)
    order = bench.order(command=bench.python("for n in range(100_000): print('line', n)"))
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED
    path = next((bench.output / ".trainmaster/logs").rglob("*.log"))
    assert path.stat().st_size > 2**20
    assert path.stat().st_blocks * 512 < 2**18
    assert bench.log(order).endswith("line 99999")


def preserved(bench, order):
    """Items that the replica kept in its output."""
    folder, key = place_of(order.key.job_id, order.attempt_number), order.key
    start = ReplicaStart(key.role, key.index, key.generation)
    return [
        item for entry_ in read_spool(Tree(bench.output), folder, start, order.token) for item in entry_.report().items
    ]


def test_what_a_job_reported_while_the_platform_was_away_is_in_its_output(bench, away):
    order = bench.order(
        command=bench.python("for n in range(1, 4): print(f'step={n} loss={1 / n}')"),
        api_url=away,
        token="tma_x",
    )
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED
    since = time.monotonic()
    remove(bench.executor, order.key.attempt_id)
    assert time.monotonic() - since < 15  # two seconds, and what a busy machine adds: no wait for the API
    assert not bench.state(order).exists()
    points = [
        (step, value)
        for item in preserved(bench, order)
        if item.kind == "metrics"
        for entry_ in item.data["series"]
        if entry_["name"] == "loss"
        for step, value in zip(entry_["steps"], entry_["values"], strict=True)
    ]
    assert points == [(n, 1 / n) for n in range(1, 4)]


@pytest.mark.parametrize("runs_s", [1, 6])  # of the longer job, a request has waited for long when it ends
def test_an_api_that_does_not_answer_delays_no_exit(bench, runs_s):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        order = bench.order(
            command=bench.python(WRITES + f"\n    import time; time.sleep({runs_s})"), api_url=url, token="tma_x"
        )
        bench.executor.create(order)
        bench.until(order, lambda o: o.phase is Phase.RUNNING)
        assert bench.ended(order).phase is Phase.SUCCEEDED
        since = time.monotonic()
        remove(bench.executor, order.key.attempt_id)
        assert time.monotonic() - since < 15
    assert [item.kind for item in preserved(bench, order) if item.kind != "metrics"] == ["progress"] * 3 + [
        "checkpoint"
    ]


FLOOD = """
    import json, os
    with open(os.environ["TRAINMASTER_REPORT_FILE"], "a") as stream:
        for step in range(10_000):
            stream.write(json.dumps({"kind": "progress", "step": step}) + "\\n")
"""


def test_a_removal_waits_for_a_runtime_that_sends_and_ends_all_others_meanwhile(bench, api):
    api.takes_s = 1.0  # twenty seconds for all of it
    running = bench.order(command="sleep 1000", role="zz")
    bench.executor.create(running)
    bench.until(running, lambda o: o.phase is Phase.RUNNING)
    attempt = running.key.attempt_id
    ended = bench.order(command=bench.python(FLOOD), api_url=api.url, token="tma_x", attempt=attempt)
    bench.executor.create(ended)
    assert bench.ended(ended).phase is Phase.SUCCEEDED
    assert bench.state(ended) < bench.state(running)  # the order of the removal
    with pytest.raises(ExecutorTryAgain, match="last reports") as wait:
        bench.executor.remove(attempt)
    assert wait.value.retry_after_s == 2
    assert bench.ended(running).phase in (Phase.FAILED, Phase.LOST)
    bench.end_last_call(attempt)  # a minute later
    bench.executor.remove(attempt)
    assert not bench.state(ended).exists()
