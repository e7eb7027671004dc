"""From records and engines' words to exits."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from executors.base import ExitCause, Phase
from executors.containers.exits import exit_without_record, phase_of, read_exit, read_facts, read_status, stop_mark

AT = datetime(2026, 11, 21, 7, 0, 0, 123456, UTC)
RECORD = {
    "cause": "exited",
    "exit_code": 3,
    "sentence": "The command ended with exit code 3.",
    "at": "2026-11-21T07:00:00.123456Z",
    "log_tail": "line",
    "facts": {"log_bytes_lost": 7},
}


def test_the_record_says_it_all():
    ended = read_exit(json.dumps(RECORD).encode())
    assert (ended.cause, ended.exit_code, ended.at, ended.log_tail) == (ExitCause.EXITED, 3, AT, "line")
    assert phase_of(ended) is Phase.FAILED
    assert read_facts(json.dumps(RECORD).encode()) == {"log_bytes_lost": 7}


@pytest.mark.parametrize(
    "text", [b"", b"Killed", b"[]", b"{}", b'{"cause": "exited"}', b'{"cause":"exited","at":"x"}', b"\xff"]
)
def test_what_is_no_record_is_none(text):
    assert read_exit(text) is None
    assert read_facts(text) == {}


def test_a_cause_of_a_newer_runtime_is_unknown():
    assert read_exit(json.dumps({**RECORD, "cause": "evaporated"}).encode()).cause is ExitCause.UNKNOWN


def test_a_termination_that_we_requested_is_a_stop():
    record = json.dumps({**RECORD, "cause": "node_lost", "exit_code": 143}).encode()
    assert read_exit(record).cause is ExitCause.NODE_LOST
    assert read_exit(record, was_requested=True).cause is ExitCause.STOPPED
    # What ended by itself before the stop came keeps its own end.
    assert read_exit(json.dumps(RECORD).encode(), was_requested=True).cause is ExitCause.EXITED


@pytest.mark.parametrize(
    ("code", "more", "cause", "log_text"),
    [
        (0, {"reason": "Completed"}, ExitCause.EXITED, "exit code 0"),
        (3, {"reason": "Error"}, ExitCause.EXITED, "exit code 3."),
        (137, {"is_out_of_memory": True, "memory_bytes": 2**29}, ExitCause.OUT_OF_MEMORY, "512 MiB"),
        (0, {"is_out_of_memory": True}, ExitCause.OUT_OF_MEMORY, "of its machine"),
        (137, {}, ExitCause.SIGNALLED, "SIGKILL"),
        (143, {"was_requested": True}, ExitCause.STOPPED, "asked"),
        (128, {"reason": "StartError: no such file"}, ExitCause.START_FAILED, "StartError: no such file"),
        (None, {}, ExitCause.UNKNOWN, "no exit code"),
    ],
)
def test_without_a_record_the_engine_has_the_word(code, more, cause, log_text):
    ended = exit_without_record(code, at=AT, **more)
    assert (ended.cause, ended.exit_code) == (cause, code)
    assert log_text in ended.sentence
    assert phase_of(ended) is (Phase.SUCCEEDED if cause is ExitCause.EXITED and code == 0 else Phase.FAILED)


def test_status_tells_running_and_why_not_yet():
    assert read_status(b"").phase is Phase.PENDING
    assert read_status(b'{"phase": "pending", "detail": "Unpacking the code."}').detail == "Unpacking the code."
    running = read_status(b'{"phase": "running", "detail": "", "started_at": "2026-11-21T07:00:00.123456Z"}')
    assert (running.phase, running.started_at) == (Phase.RUNNING, AT)


def test_the_stop_mark_holds_the_grace():
    assert json.loads(stop_mark(timedelta(seconds=2.5))) == {"grace_s": 2.5}
