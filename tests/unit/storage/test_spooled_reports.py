"""Files that a job signed itself: it has the token, and may write anything."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest
from trainmaster_runtime.reports.spool import SpoolFile

from core.storage import spooled_reports
from core.storage.spooled_reports import ReplicaStart, find_spools, place_of, read_spool, remove_spools
from core.storage.tree import Tree

START = ReplicaStart("worker", 0, 1)
FOLDER = place_of("job-1", 1)
TOKEN = "tma_att-1.mac"
ITEM = b'{"at": "2026-01-01T00:00:00Z", "kind": "progress", "data": {"step": %d}}\n'


@pytest.fixture
def output(tmp_path):
    (tmp_path / "output").mkdir()
    return tmp_path / "output"


def keep(output, *pieces, start=START):
    path = output / FOLDER / start.file_name
    who = {"role": start.role, "index": start.index, "generation": start.generation}
    SpoolFile(str(path), TOKEN).write({**who, "first_seq": 1}, pieces)
    return path


def read(output):
    return read_spool(Tree(output), FOLDER, START, TOKEN)


def items(output):
    """Number and step of each."""
    return [(item.seq, item.data.get("step")) for lines in read(output) for item in lines.report().items]


@pytest.mark.parametrize("line", [b"\n", b"ab\n", b"{}\n", b'{"data": {}}\n', b"x"])
def test_an_endless_file_takes_little_memory(output, line, monkeypatch):
    monkeypatch.setattr(spooled_reports, "LINES", 20_000)  # of objects, which are read, for the test's time
    keep(output, line * (4 * 2**20 // len(line)))
    tracemalloc.start()
    try:
        for lines in read(output):
            assert len(lines.lines) <= 500
            assert lines.report().items == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * 2**20  # three lines of the longest kind; a multiple of the file's size before


@pytest.mark.parametrize("line", [b"\n", b"ab\n", b"[]\n", b"{\n"])
def test_reading_ends_at_the_first_line_that_no_runtime_writes(output, line):
    keep(output, ITEM % 1, line * 2_000, ITEM % 2)
    assert [len(lines.lines) for lines in read(output)] == [1]
    assert items(output) == [(1, 1)]


def test_lines_are_read_up_to_a_bound(output, monkeypatch):
    monkeypatch.setattr(spooled_reports, "LINES", 1_200)
    keep(output, b"{}\n" * 5_000)
    assert [(lines.first_seq, len(lines.lines)) for lines in read(output)] == [(1, 500), (501, 500), (1001, 200)]


def test_long_lines_come_alone_and_a_longer_one_is_left_out_with_its_number(output, monkeypatch):
    monkeypatch.setattr(spooled_reports, "LINE_BYTES", 200_000)
    monkeypatch.setattr(spooled_reports, "BATCH_BYTES", 100_000)
    long = json.dumps({"at": "2026-01-01T00:00:00Z", "kind": "event", "data": {"reason": "x" * 190_000}}).encode()
    keep(output, ITEM % 1, long + b"\n", b"{" + b"x" * 400_000 + b"}\n", ITEM % 4, ITEM % 5)
    assert [len(lines.lines) for lines in read(output)] == [2, 3]
    assert items(output) == [(1, 1), (2, None), (4, 4), (5, 5)]


def test_a_file_of_any_length_comes_whole(output):
    """Whatever the pieces in which it is read cut."""
    keep(output, *(ITEM % n for n in range(1, 3_001)))
    assert items(output) == [(n, n) for n in range(1, 3_001)]


def test_a_file_over_the_limit_is_not_read(output, monkeypatch):
    path = keep(output, ITEM % 1)
    monkeypatch.setattr(spooled_reports, "FILE_BYTES", path.stat().st_size)
    assert items(output) == [(1, 1)]
    monkeypatch.setattr(spooled_reports, "FILE_BYTES", path.stat().st_size - 1)
    assert items(output) == []


def test_what_is_written_over_while_it_is_read_is_nothing(output):
    path = keep(output, *(ITEM % n for n in range(1, 3_001)))
    reading = read(output)
    first = next(reading)
    with path.open("r+b") as stream:  # as another job with the same output may do
        content = stream.read()
        stream.seek(0)
        stream.write(content.replace(b'"step": 2', b'"step": 9'))
    rest = [item.data["step"] for lines in reading for item in lines.report().items]
    assert len(first.lines) == 500
    assert all(not str(step).startswith("9") or 900 <= step < 1_000 for step in rest)
    assert max(rest) < 2_000  # of pieces that were still what was verified


def test_a_backslash_before_zeros_is_text_and_a_nul_is_none(output):
    event = '{"at": "2026-01-01T00:00:00Z", "kind": "event", "data": {"reason": "a%su0000"}}\n'
    keep(output, *((event % ("\\" * count)).encode() for count in (1, 2, 3, 4)))
    assert [seq for seq, _ in items(output)] == [2, 4]


def test_many_names_of_others_hide_nothing(output, monkeypatch):
    monkeypatch.setattr(spooled_reports, "UNKNOWN_NAME_LIMIT", 10)
    other = ReplicaStart("worker", 1, 3)
    for number in range(100):
        path = output / FOLDER / f"stranger-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    keep(output, ITEM % 1)
    sizes = {START: keep(output, ITEM % 1).stat().st_size, other: keep(output, ITEM % 2, start=other).stat().st_size}
    assert find_spools(Tree(output), FOLDER, [START, other, ReplicaStart("worker", 2, 1)]) == sizes


def test_what_is_dropped_are_the_starts_own_files_and_empty_folders(output):
    path = keep(output, ITEM % 1)
    draft = path.with_name(path.name + ".part")  # of a runtime that was killed
    draft.touch()
    stranger = path.with_name("stranger")
    stranger.touch()
    _drop(output)
    assert list(path.parent.iterdir()) == [stranger]
    stranger.unlink()
    _drop(output)
    assert list((output / ".trainmaster/reports").iterdir()) == []


@pytest.mark.parametrize("folder", [".trainmaster", ".trainmaster/reports", str(Path(FOLDER).parent), FOLDER])
def test_nothing_is_dropped_behind_a_link(output, folder):
    path = keep(output, ITEM % 1)
    (output / folder).rename(output / "elsewhere")
    (output / folder).symlink_to(os.path.relpath(output / "elsewhere", (output / folder).parent))
    assert path.exists()
    with pytest.raises(spooled_reports.NotFound):
        _drop(output)
    assert path.exists()


def _drop(output):
    remove_spools(Tree(output), FOLDER, [START, ReplicaStart("worker", 1, 1)])
