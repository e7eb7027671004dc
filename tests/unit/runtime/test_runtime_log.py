from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from trainmaster_runtime.log_writer import MAX_LINE_BYTES, JobLog, LineSplitter


@pytest.fixture
def log(tmp_path):
    return JobLog(str(tmp_path / "logs/1/worker-0.log"))


def lines_of(log):
    return Path(log.path).read_text().splitlines()


def test_every_line_starts_with_its_time_in_utc(log):
    log.write([b"one", b"two"])
    for line, text in zip(lines_of(log), ("one", "two"), strict=True):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z " + text, line)


def test_the_tail_is_the_end_of_the_log_without_times(log):
    log.write([b"first"])
    log.write([b"%d" % number for number in range(2000)])
    assert len(log.tail()) <= 4096
    assert log.tail().splitlines()[-2:] == ["1998", "1999"]
    assert not any(line.startswith("2026-") for line in log.tail().splitlines())


def test_lines_that_could_not_be_written_are_counted_and_reported_later(log, monkeypatch):
    real, room = os.write, [5]

    def write(fd, data):
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = min(room[0], len(data))
        room[0] -= count
        return real(fd, data[:count])

    monkeypatch.setattr("trainmaster_runtime.log_writer.os.write", write)
    monkeypatch.setattr("trainmaster_runtime.log_writer.RETRY_S", 0.0)
    log.write([b"torn"])
    assert log.failure is not None
    log.write([b"lost"])
    room[0] = 1_000_000
    log.write([b"there again"])
    assert log.failure is None
    torn, reported, last = lines_of(log)
    assert len(torn) == 5
    assert re.search(r"about \d+ bytes of the log were lost", reported)
    assert last.endswith("there again")
    assert log.tail().splitlines() == ["torn", "lost", "there again"]


def test_a_log_that_cannot_be_opened_loses_lines_and_does_not_raise(tmp_path):
    (tmp_path / "logs").write_text("a file where the folder should be")
    log = JobLog(str(tmp_path / "logs/1/worker-0.log"))
    log.write([b"x"])
    assert log.failure is not None
    assert log.lost_bytes > 0


def feed(splitter, *chunks, step=0.0):
    lines = []
    now = 100.0
    for chunk in chunks:
        lines += splitter.feed(chunk, now)
        now += step
    return lines + splitter.finish()


def test_lines_are_whole_however_they_arrive():
    assert feed(LineSplitter(), b"a", b"b\ncd", b"\n\ne") == [b"ab", b"cd", b"", b"e"]


def test_windows_line_ends_are_line_ends():
    assert feed(LineSplitter(), b"a\r\nb\r", b"\nc\r\n") == [b"a", b"b", b"c"]


def test_the_rank_is_in_front_of_every_line():
    assert feed(LineSplitter(b"[rank 3] "), b"a\nb") == [b"[rank 3] a", b"[rank 3] b"]


def test_a_progress_bar_is_a_line_twice_a_second_and_its_end_is_preserved():
    frames = [b"\r%d%%" % number for number in range(101)]
    lines = feed(LineSplitter(), *frames, b"\n", step=0.1)
    assert lines[-1] == b"100%"
    assert 15 <= len(lines) <= 23
    assert b"" not in lines


def test_a_progress_bar_that_returns_at_the_end_is_shown_too():
    lines = feed(LineSplitter(), *[b"%d%%\r" % number for number in range(0, 101, 10)], b"done\n", step=0.6)
    assert lines[0] == b"0%"
    assert lines[-2:] == [b"100%", b"done"]


def test_redraws_in_one_piece_become_their_last():
    assert feed(LineSplitter(), b"1\r2\r3\r4\n") == [b"3", b"4"]


def test_a_long_line_is_split_between_characters():
    text = "ä" * MAX_LINE_BYTES
    lines = feed(LineSplitter(), b"x" + text.encode() + b"\n")
    assert all(len(line) <= MAX_LINE_BYTES for line in lines)
    assert b"".join(lines).decode() == "x" + text
    for line in lines:
        line.decode()


def test_a_line_without_end_does_not_wait_for_it():
    splitter = LineSplitter()
    assert len(splitter.feed(b"x" * (3 * MAX_LINE_BYTES), 0.0)) >= 2


def test_bytes_that_are_no_text_pass():
    garbage = bytes(range(128, 256)) * 2000
    assert b"".join(feed(LineSplitter(), garbage)) == garbage


def test_secrets_are_masked_in_every_line(tmp_path):
    path = tmp_path / "logs/1/worker-0.log"
    log = JobLog(str(path))
    log.mask(["hunter-2222", "hunter-2222-long", "abc", "", "-----BEGIN-----\nline-of-a-key\n-----END-----\n"])
    log.write([b"a=hunter-2222 b=hunter-2222-long", b"abc line-of-a-key."])
    log.say("the command hunter-2222 is missing")
    text = path.read_text()
    assert "hunter" not in text
    assert "line-of-a-key" not in text
    assert [line.partition(" ")[2] for line in text.splitlines()] == [
        "a=*** b=***",
        "abc ***.",
        "trainmaster: the command *** is missing",
    ]
    assert "hunter" not in log.tail()
