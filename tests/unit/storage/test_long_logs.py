"""A replica's log at its limit: what the runtime keeps of it, and what is read of that."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import pytest
from trainmaster_runtime.log_writer import JobLog
from trainmaster_runtime.process import syscalls

from core.storage.logs.files import JobLogs, line_starts_backwards, parse_line, tail_offset
from core.storage.logs.merge import LogMerge, LogPosition, Selection, newest_position
from core.storage.tree import Tree

LIMIT = 256 * 2**10
LINES = 40_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".trainmaster/logs/job-1/1/worker-0.log"


@pytest.fixture
def logs(tmp_path: Path) -> JobLogs:
    return JobLogs(Tree(tmp_path), "job-1")


def fill(path: Path) -> JobLog:
    log = JobLog(str(path), LIMIT)
    for number in range(0, LINES, 10):
        log.write([b"line %d" % n for n in range(number, number + 10)])
    return log


def texts(merge: LogMerge) -> list[str]:
    merge.refresh()
    found: list[str] = []
    while True:
        found += [parse_line(line.raw).text for line in merge.step(is_final=True)]
        if not merge.is_truncated:
            return found


def numbers(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith("line ")]


def test_the_beginning_and_the_newest_lines_are_retained_and_the_room_is_bounded(path: Path, logs: JobLogs) -> None:
    log = fill(path)
    status = path.stat()
    assert status.st_size > 4 * LIMIT, "offsets go on"
    assert status.st_blocks * 512 < LIMIT * 1.2
    assert log.lost_bytes == 0
    read = texts(LogMerge(logs, Selection(), LogPosition()))
    assert not any("\0" in line for line in read)
    retained = numbers(read)
    assert retained == sorted(set(retained))
    assert retained[0] == 0
    assert retained[-1] == LINES - 1
    gaps = [(one, two) for one, two in pairwise(retained) if two != one + 1]
    assert len(gaps) == 1, "one part is missing, and every line beside it is whole"


def test_whoever_follows_meets_the_sentence_that_says_what_happens(path: Path, logs: JobLogs) -> None:
    merge = LogMerge(logs, Selection(), LogPosition())
    log = JobLog(str(path), LIMIT)
    seen: list[str] = []
    for number in range(LINES):
        log.write([b"line %d" % number])
        if number % 500 == 0:
            merge.refresh()
            while lines := merge.step():
                seen += [parse_line(line.raw).text for line in lines]
    assert numbers(seen) == list(range(len(numbers(seen)))), "who reads along misses nothing"
    (sentence,) = [line for line in seen if not line.startswith("line ")]
    assert sentence == (
        "trainmaster: the log has reached its limit of 262144 bytes: its beginning and its newest lines are kept, "
        "what is between is dropped"
    )


def test_the_last_lines_are_found_from_the_end_and_across_the_gap(path: Path, logs: JobLogs) -> None:
    fill(path)
    last = LogMerge(logs, Selection(), newest_position(logs, Selection(), tail_lines=3))
    assert numbers(texts(last)) == [LINES - 3, LINES - 2, LINES - 1]
    with logs.opened(1, "worker-0") as fd:
        assert tail_offset(fd, 10**9) == 0
        assert sum(1 for _ in line_starts_backwards(fd, os.fstat(fd).st_size)) < LINES


def test_zeros_that_the_job_printed_are_no_gap(path: Path, logs: JobLogs) -> None:
    log = JobLog(str(path), LIMIT)
    log.write([b"a\0\0b", b"\0" * 10_000, b"c"])
    assert texts(LogMerge(logs, Selection(), LogPosition())) == ["a\0\0b", "\0" * 10_000, "c"]


def test_where_no_middle_can_be_dropped_the_log_ends_with_that_sentence(
    path: Path, logs: JobLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(syscalls, "punch_hole", refuse)
    log = fill(path)
    assert path.stat().st_size < LIMIT * 1.2
    assert log.lost_bytes > 0
    assert log.tail().endswith(f"line {LINES - 1}"), "the exit is still explained by the newest lines"
    read = texts(LogMerge(logs, Selection(), LogPosition()))
    assert read[-1].endswith("this file system cannot drop its middle, so what comes from here on is not kept")
    assert numbers(read) == list(range(len(read) - 1))
