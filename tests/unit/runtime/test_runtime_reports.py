from __future__ import annotations

import json

import pytest
from trainmaster.wire.metrics import Report
from trainmaster_runtime.metrics.collector import Collector
from trainmaster_runtime.metrics.patterns import LinePatterns
from trainmaster_runtime.reports import batch_sender
from trainmaster_runtime.reports import reporter as reporter_module
from trainmaster_runtime.reports.reporter import Reporter
from trainmaster_runtime.reports.send_queue import SendQueue

from tests.unit.runtime.report_api import SkippingClock, connect_to


class Api:
    """What the server does with reports: keeps each number once, may be away or dislike things."""

    def __init__(self):
        self.received = []
        self.acked = 0
        self.status = 200
        self.answer = {}
        self.loses_answers = False
        self.dislikes = lambda _: False
        self.calls = 0

    def post(self, body):
        self.calls += 1
        report = Report.model_validate(body)
        if self.status == 0:
            raise OSError("connection refused")
        if self.status != 200:
            return self.status, self.answer
        if any(self.dislikes(item) for item in body["items"]):
            return 422, {}
        for item in report.items:
            if item.seq > self.acked:
                assert item.seq == self.acked + 1, "numbers have a gap"
                self.acked = item.seq
                self.received.append((item.kind, item.data))
        if self.loses_answers:
            raise OSError("connection reset")
        return 200, {"acked": self.acked}


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def log_lines():
    return []


@pytest.fixture
def make_reporter(tmp_path, api, log_lines, monkeypatch):
    connect_to(api.post, monkeypatch)
    monkeypatch.setattr(batch_sender, "HEARTBEAT_S", float("inf"))  # no heartbeat among what is counted
    made = []

    def make(**options):
        made.append(new_reporter(tmp_path, log_lines, **options))
        return made[-1]

    yield make
    for reporter in made:
        reporter.queue.close()


@pytest.fixture
def reporter(make_reporter):
    return make_reporter()


def new_reporter(tmp_path, log_lines, **options):
    return Reporter(
        api_url="http://api",
        token="tma_x",
        replica={"role": "worker", "index": 0, "generation": 1},
        source=str(tmp_path / "report.jsonl"),
        spool_path=str(tmp_path / "spool"),
        say=log_lines.append,
        api_file=str(tmp_path / "api.json"),
        **options,
    )


@pytest.fixture
def write(tmp_path):
    def append(*items):
        with (tmp_path / "report.jsonl").open("a", encoding="utf-8") as stream:
            stream.writelines(item if isinstance(item, str) else json.dumps(item) + "\n" for item in items)

    return append


@pytest.fixture
def go(monkeypatch):
    """One round of the thread, with every back-off over."""
    skipping = SkippingClock(monkeypatch)

    def run(reporter, *, last=False):
        reporter.read_reports(last)
        skipping.skip()
        reporter.sender.send_due(last)

    return run


def test_what_user_code_writes_arrives_in_order(reporter, api, write, go):
    write({"kind": "progress", "step": 1}, {"kind": "checkpoint", "path": "checkpoints/1", "step": 1})
    go(reporter)
    write({"kind": "progress", "step": 2, "metrics": {"loss": 0.5}})
    go(reporter)
    assert api.received == [
        ("progress", {"step": 1}),
        ("checkpoint", {"path": "checkpoints/1", "step": 1}),
        ("progress", {"step": 2, "metrics": {"loss": 0.5}}),
    ]


def test_a_line_counts_when_it_is_whole(reporter, api, write, go):
    write('{"kind": "progress", ')
    go(reporter)
    assert api.received == []
    write('"step": 1}\n')
    go(reporter)
    assert api.received == [("progress", {"step": 1})]


def test_progress_that_a_script_reports_wins_over_its_printed_lines(reporter, write, go):
    reporter.metrics.collector = Collector(patterns=LinePatterns([]))
    write({"kind": "progress", "metrics": {"step_s": 0.1}})  # a timer's, of no step
    go(reporter)
    reporter.metrics.collector.note([b"step=98 loss=7"])
    assert [item["data"] for item in reporter.metrics.collector.collect(is_last=False)] == [{"step": 98}]
    write({"kind": "progress", "step": 100, "steps": 100, "metrics": {"loss": 0.5}})
    go(reporter)
    reporter.metrics.collector.note([b"step=99 loss=7"])
    assert reporter.metrics.collector.collect(is_last=False) == []


def test_a_checkpoints_metrics_leave_printed_ones_their_place(reporter, write, go):
    reporter.metrics.collector = Collector(patterns=LinePatterns([]))
    write({"kind": "checkpoint", "path": "checkpoints/1", "step": 1, "metrics": {"loss": 0.5}})
    go(reporter)
    reporter.metrics.collector.note([b"step=2 loss=7"])
    metrics, _ = reporter.metrics.collector.collect(is_last=False)
    assert metrics["data"]["series"][0]["name"] == "loss"


def test_the_last_line_needs_no_newline(reporter, api, write, go):
    write('{"kind": "progress", "step": 9}')
    go(reporter, last=True)
    assert api.received == [("progress", {"step": 9})]


def test_a_line_of_brackets_ends_no_reports(reporter, api, write, go):
    write("[" * 100_000 + "\n", {"kind": "progress", "step": 1})
    go(reporter)
    assert api.received == [("progress", {"step": 1})]


def test_a_line_without_an_end_is_left_out_and_reported_once(reporter, api, log_lines, write, go):
    for _ in range(3):
        write("x" * 700_000)
        go(reporter)
    assert reporter.report_file.offset >= 1_400_000, "it was kept to be read again"
    write("\n", {"kind": "progress", "step": 1})
    go(reporter)
    assert api.received == [("progress", {"step": 1})]
    assert len(log_lines) == 1
    assert "was left out" in log_lines[0]


def test_rubbish_is_left_out(reporter, api, write, go):
    write("not json\n", "[1]\n", {"kind": "heartbeat"}, {"kind": "nonsense"}, {"kind": "progress", "step": 1})
    go(reporter)
    assert api.received == [("progress", {"step": 1})]


def test_while_the_api_is_away_everything_waits_and_then_arrives_once(reporter, api, write, go):
    api.status = 0
    for step in range(50):
        write({"kind": "progress", "step": step})
        go(reporter)
    api.status = 200
    go(reporter)
    assert [data["step"] for _, data in api.received] == list(range(50))


def test_a_lost_answer_does_not_double_anything(reporter, api, write, go):
    api.loses_answers = True
    write({"kind": "progress", "step": 1})
    go(reporter)
    write({"kind": "progress", "step": 2})
    go(reporter)
    api.loses_answers = False
    go(reporter)
    assert [data["step"] for _, data in api.received] == [1, 2]


def test_a_failed_call_is_not_repeated_at_once(reporter, api, write, go):
    api.status = 503
    write({"kind": "progress", "step": 1})
    go(reporter)
    reporter.sender.send_due(False)
    assert api.calls == 1


def test_what_the_server_dislikes_costs_only_itself(reporter, api, write, go):
    api.dislikes = lambda item: item["data"].get("step") == 3
    write(*({"kind": "progress", "step": step} for step in range(8)))
    go(reporter)
    assert [data["step"] for kind, data in api.received if kind == "progress"] == [0, 1, 2, 4, 5, 6, 7]


def test_heartbeats_come_when_nothing_else_does(reporter, api, go, monkeypatch):
    monkeypatch.setattr(batch_sender, "HEARTBEAT_S", 10.0)
    go(reporter)
    reporter.sender.send_due(False)
    assert api.received == [("heartbeat", {})]


@pytest.mark.parametrize(
    ("status", "answer", "has_ended"),
    [(410, {"code": "attempt_ended"}, True), (410, {}, False), (401, {}, False), (404, {"code": "not_found"}, False)],
)
def test_only_an_ended_attempt_is_a_reason_to_end(reporter, api, write, status, answer, has_ended):
    api.status, api.answer = status, answer
    write({"kind": "progress", "step": 1})
    reporter.read_reports(False)
    reporter.sender.send_due(False)
    assert reporter.has_attempt_ended is has_ended
    assert reporter.sender.is_refused


def test_a_refused_token_ends_the_reports_and_is_reported_once(reporter, api, log_lines, write, go):
    api.status = 401
    write({"kind": "progress", "step": 1})
    go(reporter)
    assert reporter.sender.is_refused
    assert len(log_lines) == 1


def test_reports_follow_an_api_that_has_moved(tmp_path, reporter, api, write, go):
    api.status = 0
    write({"kind": "progress", "step": 1})
    go(reporter)
    (tmp_path / "api.json").write_text('{"url": "http://moved/"}')
    api.status = 200
    reporter.sender.follow_api()
    reporter.sender.send_due(False)  # at once: the back-off was for the old place
    assert reporter.connection.url == "http://moved/api/v1/runtime/report"
    assert api.received == [("progress", {"step": 1})]


def test_a_stranger_at_the_old_place_does_not_end_the_reports(tmp_path, reporter, api, log_lines, write, go):
    api.status = 404
    write({"kind": "progress", "step": 1})
    go(reporter)
    reporter.sender.follow_api()
    assert reporter.sender.is_refused  # nothing has moved
    (tmp_path / "api.json").write_text('{"url": "http://moved"}')
    api.status = 200
    reporter.sender.follow_api()
    go(reporter)
    assert api.received == [("progress", {"step": 1})]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": 3}', "half of {"])
def test_a_broken_note_of_a_move_changes_nothing(tmp_path, reporter, text):
    (tmp_path / "api.json").write_text(text)
    reporter.sender.follow_api()
    assert reporter.connection.url == "http://api/api/v1/runtime/report"


def test_what_was_read_of_the_report_file_takes_no_room(tmp_path, reporter, api, write, go):
    for first in range(0, 20_000, 2_000):
        write(*({"kind": "progress", "step": first + n, "note": "x" * 500} for n in range(2_000)))
        reporter.read_reports(False)
    status = (tmp_path / "report.jsonl").stat()
    assert status.st_size > 10 * 2**20
    assert status.st_blocks * 512 < 5 * 2**20
    write({"kind": "checkpoint", "path": "checkpoints/1"})
    go(reporter)
    assert api.received[-1] == ("checkpoint", {"path": "checkpoints/1"})


def test_the_spool_is_bounded_and_keeps_checkpoints(tmp_path):
    spool = SendQueue(str(tmp_path / "spool"), limit_bytes=4000)
    for number in range(500):
        kind = "checkpoint" if number % 50 == 0 else "progress"
        spool.add({"kind": kind, "data": {"step": number}})
    items = []
    while spool:
        items += spool.take()
    steps = [item["data"]["step"] for item in items]
    assert steps == sorted(steps)
    assert [item["data"]["step"] for item in items if item["kind"] == "checkpoint"] == list(range(0, 500, 50))
    assert steps[-1] == 499
    assert (tmp_path / "spool").stat().st_size == 0
    spool.close()


class Pieces:
    """A collector with ``left`` pieces to read; ``sent`` is what had arrived before each look."""

    sources = None
    troubles = ()

    def __init__(self, left, api):
        self.left, self.api = left, api
        self.sent = []
        self.is_closed = False

    def collect(self, *, is_last):
        self.sent.append(len(self.api.received))
        self.left -= 1
        series = [{"name": "loss", "steps": [self.left], "values": [0.5]}]
        return [{"kind": "metrics", "data": {"series": series}}] if self.left >= 0 else []

    def suggestions(self):
        return []

    def close(self):
        self.is_closed = True


def test_what_is_read_at_the_end_is_sent_before_all_is_read(make_reporter, api, monkeypatch):
    monkeypatch.setattr(reporter_module, "READ_S", 0.0)
    pieces = Pieces(3, api)
    reporter = make_reporter(collector=lambda: pieces)
    reporter.start()
    reporter.finish()
    assert pieces.sent == [0, 1, 2, 3]
    assert pieces.is_closed
