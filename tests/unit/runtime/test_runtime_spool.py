"""Spooled reports, from the runtime that saves them to the platform that reads them."""

from __future__ import annotations

import json
import os
import socket
import threading
import time

import pytest
from trainmaster_runtime.reports import batch_sender, reporter, send_queue
from trainmaster_runtime.reports.reporter import Reporter
from trainmaster_runtime.reports.spool import SpoolFile

from core.storage.spooled_reports import ReplicaStart, find_spools, place_of, read_spool
from core.storage.tree import Tree
from tests.unit.runtime.report_api import SkippingClock, connect_to

START = ReplicaStart("worker", 0, 1)
FOLDER = place_of("job-1", 1)
TOKEN = "tma_att-1.mac"


class Lab:
    """A reporter whose API answers ``status``; 0: it is away."""

    def __init__(self, folder, api_url="http://api"):
        self.output = folder / "output"
        self.source = folder / "report.jsonl"
        self.status = 0
        self.takes_s = 0.0
        self.answer = {}
        self.sent = []
        self.log_lines = []
        self.reporter = Reporter(
            api_url=api_url,
            token=TOKEN,
            replica={"role": "worker", "index": 0, "generation": 1},
            source=str(self.source),
            spool_path=str(folder / "spool"),
            say=self.log_lines.append,
            spool_file=SpoolFile(str(self.output / FOLDER / START.file_name), TOKEN),
        )

    def post(self, body):
        time.sleep(self.takes_s)
        if self.status == 0:
            raise OSError("connection refused")
        if self.status != 200:
            return self.status, self.answer
        self.sent += [item["seq"] for item in body["items"]]
        return 200, {"acked": body["items"][-1]["seq"]}

    def write(self, *steps):
        with self.source.open("a") as stream:
            stream.writelines(json.dumps({"kind": "progress", "step": step}) + "\n" for step in steps)

    def go(self, skipping):
        """One round of the thread, with every back-off over."""
        self.reporter.read_reports(False)
        skipping.skip()
        self.reporter.sender.send_due(False)
        self.reporter.saver.save_periodically()

    def spooled_items(self, token=TOKEN):
        """Number and step of each item that the platform finds."""
        output = Tree(self.output)
        reports = [
            report
            for start in find_spools(output, FOLDER, [START])
            for report in read_spool(output, FOLDER, start, token)
        ]
        return [(item.seq, item.data.get("step")) for report in reports for item in report.report().items]


@pytest.fixture
def skipping(monkeypatch):
    return SkippingClock(monkeypatch)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_sender, "FLUSH_S", 0.3)
    monkeypatch.setattr(reporter, "FIRST_S", 0.0)
    (tmp_path / "output").mkdir()
    monkeypatch.setattr(batch_sender, "HEARTBEAT_S", float("inf"))  # no heartbeat among what is counted
    made = Lab(tmp_path)
    connect_to(made.post, monkeypatch)
    yield made
    made.reporter.queue.close()


def test_what_an_api_that_is_away_did_not_take_is_preserved_with_its_numbers(lab, skipping):
    lab.status = 200
    lab.write(1, 2)
    lab.go(skipping)
    assert lab.sent == [1, 2]
    lab.status = 0
    lab.reporter.start()
    lab.write(3, 4)
    lab.reporter.finish()
    assert lab.spooled_items() == [(3, 3), (4, 4)]


def test_an_end_with_the_api_there_waits_for_nothing_and_keeps_nothing(lab):
    lab.status = 200
    lab.reporter.start()
    lab.write(1)
    since = time.monotonic()
    lab.reporter.finish()
    assert time.monotonic() - since < 0.3
    assert lab.spooled_items() == []


def test_more_than_a_batch_is_preserved_in_order(lab):
    lab.reporter.start()
    lab.write(*range(1, 1801))
    lab.reporter.finish()
    assert lab.spooled_items() == [(n, n) for n in range(1, 1801)]


def test_a_job_that_runs_on_while_the_api_is_away_keeps_what_its_node_could_take_along(lab, skipping):
    lab.write(1)
    lab.go(skipping)
    assert lab.spooled_items() == []  # one failure is no outage
    for _ in range(3):
        lab.go(skipping)
    assert lab.spooled_items() == [(1, 1)]
    lab.write(2)
    lab.go(skipping)
    assert lab.spooled_items() == [(1, 1), (2, 2)]
    lab.status = 200
    lab.go(skipping)
    lab.go(skipping)
    assert (lab.sent, lab.spooled_items()) == ([1, 2], [])


@pytest.mark.parametrize(
    ("status", "answer", "spooled_items"),
    [
        (401, {}, [(1, 1)]),  # from the server that has the old address now
        (410, {"code": "attempt_ended"}, []),
    ],
)
def test_what_was_refused_is_preserved_unless_the_attempt_is_over(lab, status, answer, spooled_items):
    lab.status, lab.answer = status, answer
    lab.reporter.start()
    lab.write(1)
    lab.reporter.finish()
    assert lab.spooled_items() == spooled_items


def test_who_is_to_end_at_once_keeps_what_the_api_would_still_take(lab, monkeypatch):
    monkeypatch.setattr(send_queue, "BATCH_ITEMS", 1)
    lab.status = 200
    lab.takes_s = 0.2
    lab.reporter.start()
    lab.write(*range(1, 101))
    since = time.monotonic()
    lab.reporter.finish(lambda: len(lab.sent) >= 3)
    assert time.monotonic() - since < 5
    left = [seq for seq, _ in lab.spooled_items()]
    assert len(left) > 50
    assert lab.sent + left == list(range(1, 101))


def test_an_api_that_takes_one_after_the_other_is_given_all(lab, monkeypatch):
    monkeypatch.setattr(send_queue, "BATCH_ITEMS", 1)
    lab.status = 200
    lab.takes_s = 0.1
    lab.reporter.start()
    lab.write(*range(1, 11))  # a second, and not the time that an end has for an API that is away
    lab.reporter.finish()
    assert (lab.sent, lab.spooled_items()) == (list(range(1, 11)), [])


def test_an_api_that_never_answers_delays_an_end_by_its_two_seconds_alone(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lab = Lab(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        lab.write(1)
        lab.reporter.start()
        requested, _ = silent.accept()  # the request, which would wait for ten seconds
        time.sleep(0.1)
        since = time.monotonic()
        lab.reporter.finish()
        requested.close()
        lab.reporter.queue.close()
    assert time.monotonic() - since < 4
    assert lab.spooled_items() == [(1, 1)]


def test_no_room_for_it_is_reported_in_the_log(lab):
    (lab.output / ".trainmaster").write_text("in the way")
    lab.reporter.start()
    lab.write(1)
    lab.reporter.finish()
    assert any("last reports are lost" in line for line in lab.log_lines)


def spool_by_hand(lab, *, start=START, token=TOKEN, steps=(7,)):
    spooled_items = SpoolFile(str(lab.output / FOLDER / START.file_name), token)
    lines = [json.dumps({"at": "2026-01-01T00:00:00Z", "kind": "progress", "data": {"step": n}}) + "\n" for n in steps]
    replica = {"role": start.role, "index": start.index, "generation": start.generation}
    spooled_items.write({**replica, "first_seq": 1}, [line.encode() for line in lines])
    return lab.output / FOLDER / START.file_name


def test_what_another_job_laid_there_or_changed_is_nothing(lab):
    path = spool_by_hand(lab)
    assert lab.spooled_items() == [(1, 7)]
    path.write_bytes(path.read_bytes().replace(b'"step": 7', b'"step": 9'))
    assert lab.spooled_items() == []
    spool_by_hand(lab, token="tma_att-2.mac")
    assert lab.spooled_items() == []
    spool_by_hand(lab, start=ReplicaStart("worker", 1, 1))  # a peer's, which has the same token
    assert lab.spooled_items() == []


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"\xff" * 100, b"[]\n\n\n"])
def test_a_torn_file_is_nothing(lab, content):
    spool_by_hand(lab).write_bytes(content)
    assert lab.spooled_items() == []


def test_neither_links_nor_pipes_are_opened(lab, tmp_path):
    path = spool_by_hand(lab)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert lab.spooled_items() == []
    path.unlink()
    os.mkfifo(path)
    done = threading.Thread(target=lab.spooled_items, daemon=True)
    done.start()
    done.join(10)
    assert not done.is_alive()
