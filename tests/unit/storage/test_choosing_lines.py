"""Lines by gravity and by time: what a line says of itself, and a place in a long file found without reading it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.storage.logs.files import JobLogs, parse_line, stamp_at, time_offset
from core.storage.logs.filters import RANKS, LineSearch, level_after, level_of
from core.storage.logs.merge import LogMerge, Selection, newest_position
from core.storage.tree import Tree

START = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)


def at(second: float) -> bytes:
    return stamp_at(START + timedelta(seconds=second))


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (b"2026-11-21 07:00:00,123 INFO root: begun", "info"),
        (b"\x1b[31mERROR\x1b[0m disk full", "error"),
        (b"[warning] slow data", "warning"),
        (b"error: no such file", "error"),
        (b'{"level": "debug", "msg": "x"}', "debug"),
        (b"time=1 level=warn msg=x", "warning"),
        (b"Traceback (most recent call last):", "error"),
        (b"torch.cuda.OutOfMemoryError: CUDA out of memory", "error"),
        (b"/app/train.py:12: UserWarning: deprecated", "warning"),
        (b"W1121 07:00:00.000000 1 a.cc:7] slow", "warning"),
        (b"2026-11-21 07:00:00.123456: E external/xla.cc:1] broken", "error"),
        (b"CRITICAL: gone", "critical"),
    ],
)
def test_a_line_says_how_grave_it_is(line: bytes, level: str) -> None:
    assert level_of(line) == RANKS[level]


@pytest.mark.parametrize(
    "line", [b"", b"loss=0.1 step=3", b"errors: 0 so far", b"information", b"\xff\xfe\x00", b"x" * 10_000_000]
)
def test_other_lines_say_nothing(line: bytes) -> None:
    assert level_of(line) is None


def test_indented_lines_go_on_with_what_the_line_above_them_stated() -> None:
    assert level_after(b'  File "train.py", line 3', 40) == 40
    assert level_after(b"next", 40) is None
    assert level_after(b"  INFO: x", 40) == 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / ".trainmaster/logs/job-1/1"
    made.mkdir(parents=True)
    return made


def read(tmp_path: Path, selection: Selection) -> list[str]:
    logs = JobLogs(Tree(tmp_path), "job-1")
    merge = LogMerge(logs, selection, newest_position(logs, selection, tail_lines=None))
    merge.refresh()
    found: list[str] = []
    while True:
        found += [parse_line(line.raw).text for line in merge.step(max_lines=100, is_final=True)]
        if not merge.is_truncated:
            return found


def test_lines_are_chosen_by_level_time_and_words_together(tmp_path: Path, folder: Path) -> None:
    (folder / "worker-0.log").write_bytes(
        b"".join(
            at(second) + b" " + text + b"\n"
            for second, text in (
                (0, b"INFO begun"),
                (1, b"ERROR first"),
                (1, b"  detail of first"),
                (2, b"WARNING slow"),
                (3, b"ERROR second"),
                (4, b"plain"),
            )
        )
    )
    assert read(tmp_path, Selection(level=RANKS["error"])) == ["ERROR first", "  detail of first", "ERROR second"]
    assert read(tmp_path, Selection(level=RANKS["warning"], since=at(2))) == ["WARNING slow", "ERROR second"]
    assert read(tmp_path, Selection(since=at(1), until=at(2))) == ["ERROR first", "  detail of first", "WARNING slow"]
    assert read(tmp_path, Selection(until=at(3), search=LineSearch("second|slow"))) == ["WARNING slow", "ERROR second"]
    assert read(tmp_path, Selection(since=at(9))) == []


def test_a_search_passes_over_no_line_that_a_level_belongs_to(tmp_path: Path, folder: Path) -> None:
    # Two reads of the file: the words stand in the second, what they go on with in the first.
    with (folder / "worker-0.log").open("wb") as stream:
        stream.write(at(0) + b" ERROR it went wrong\n")
        for number in range(200_000):
            stream.write(at(1) + b"   frame %d\n" % number)
        stream.write(at(2) + b"   needle\n")
    assert read(tmp_path, Selection(level=RANKS["error"], search=LineSearch("needle"))) == ["  needle"]


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_beyond_the_calendar_is_its_end(moment: str) -> None:
    assert stamp_at(datetime.fromisoformat(moment))[:19].decode() == moment[:19]


def test_a_time_in_a_long_file_is_found_by_halving_it(tmp_path: Path, folder: Path) -> None:
    path = folder / "worker-0.log"
    with path.open("wb") as stream:
        for second in range(20_000):
            stream.write(at(second) + b" line %d " % second + b"x" * 100 + b"\n")
    fd = os.open(path, os.O_RDONLY)
    try:
        offset = time_offset(fd, at(15_000))
        size = os.fstat(fd).st_size
        assert abs(offset - size * 3 // 4) < 128 * 1024
        assert os.pread(fd, 27, offset) <= at(15_000)
        assert time_offset(fd, at(-5)) == 0
    finally:
        os.close(fd)
    chosen = read(tmp_path, Selection(since=at(15_000), until=at(15_002)))
    assert [text.split()[1] for text in chosen] == ["15000", "15001", "15002"]


def test_binary_without_stamps_is_searched_for_a_time_without_harm(tmp_path: Path, folder: Path) -> None:
    (folder / "worker-0.log").write_bytes(os.urandom(500_000) + b"\n" + at(5) + b" told\n")
    assert read(tmp_path, Selection(since=at(5)))[-1] == "told"
