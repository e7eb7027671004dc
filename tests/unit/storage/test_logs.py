from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain.errors import InvalidRequest, NotFound
from core.storage.logs.files import JobLogs, line_starts_backwards, parse_line, tail_offset
from core.storage.logs.filters import LineSearch, without_anchors
from core.storage.logs.merge import LINE_LIMIT, LogMerge, LogPosition, MergedLine, Selection, newest_position
from core.storage.tree import Tree


def stamped(second: float, text: str) -> str:
    return f"2026-11-21T07:00:{second:09.6f}Z {text}\n"


class Output:
    """A job's output on disk, as the runtime writes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = JobLogs(Tree(root), "job-1")

    def write(self, attempt: int, name: str, *lines: str, end: str = "") -> None:
        folder = self.root / ".trainmaster/logs/job-1" / str(attempt)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.log").open("a") as file:
            file.write("".join(lines) + end)


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output(tmp_path)


def texts(lines: list[MergedLine]) -> list[str]:
    return [parse_line(line.raw).text for line in lines]


def read_all(merge: LogMerge, *, is_final: bool = True, max_lines: int = 3) -> list[MergedLine]:
    merge.refresh()
    found: list[MergedLine] = []
    while True:
        found += merge.step(max_lines=max_lines, is_final=is_final)
        if not merge.is_truncated:
            return found


def test_a_line_is_taken_apart() -> None:
    line = parse_line(b"2026-11-21T07:00:00.123456Z [rank 3] loss 0.1\r")
    assert line.at == datetime(2026, 11, 21, 7, 0, 0, 123456, UTC)
    assert line.text == "[rank 3] loss 0.1"


@pytest.mark.parametrize(
    "raw", [b"", b"no stamp", b"\xff\xfe", b"2026-11-21T07:00:00", b"2026-99-99T99:99:99.123456Z x", b"[rank 1"]
)
def test_whatever_stands_in_a_log_is_shown(raw: bytes) -> None:
    line = parse_line(raw)
    assert line.at is None
    assert line.text == raw.decode("utf-8", "replace")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_parsing_never_fails(raw: bytes) -> None:
    parse_line(raw)


def test_files_are_listed_in_rank_order_and_strangers_are_left_out(output: Output) -> None:
    for name in ("worker-10", "worker-2", "chief-0", "ps-0", "zebra-x-1"):
        output.write(2, name, "x\n")
    output.write(1, "worker-0", "x\n")
    folder = output.root / ".trainmaster/logs/job-1"
    (folder / "2" / "notes.txt").write_text("x")
    (folder / "2" / "worker-00.log").write_text("x")
    (folder / "2" / "evil-0.log").symlink_to("/etc/passwd")
    (folder / "latest").symlink_to("2")
    assert output.logs.attempts() == [1, 2]
    assert [f.name for f in output.logs.files(2)] == ["chief-0", "worker-2", "worker-10", "ps-0", "zebra-x-1"]
    assert [f.attempt for f in output.logs.all_files()] == [1, 2, 2, 2, 2, 2]
    files = list(output.logs.all_files())
    assert [list(output.logs.all_files(after=file.order)) for file in files] == [files[n:] for n in range(1, 7)]
    with pytest.raises(NotFound):
        output.logs.open(2, "worker-99")
    with pytest.raises(InvalidRequest):
        output.logs.open(2, "../../x")


def test_a_job_that_has_not_started_has_no_logs(output: Output) -> None:
    assert list(output.logs.all_files()) == []
    merge = LogMerge(output.logs, Selection(), LogPosition())
    assert read_all(merge) == []


def test_lines_of_all_ranks_come_in_order_of_time(output: Output) -> None:
    output.write(1, "worker-0", stamped(1, "a"), stamped(4, "d"), "no stamp\n", stamped(6, "f"))
    output.write(1, "worker-1", stamped(2, "b"), stamped(3, "c"), stamped(5, "e"))
    merge = LogMerge(output.logs, Selection(), LogPosition())
    assert texts(read_all(merge)) == ["a", "b", "c", "d", "no stamp", "e", "f"]


def test_the_stream_goes_on_from_any_place_with_what_is_left(output: Output) -> None:
    for number in range(5):
        output.write(1, "worker-0", stamped(2 * number, f"a{number}"))
        output.write(1, "worker-1", stamped(2 * number + 1, f"b{number}"))
    output.write(2, "worker-0", stamped(20, "z"))
    whole = texts(read_all(LogMerge(output.logs, Selection(), LogPosition())))
    assert whole[-1] == "z"
    for cut in range(len(whole) + 1):
        merge = LogMerge(output.logs, Selection(), LogPosition())
        merge.refresh()
        head: list[MergedLine] = []
        while len(head) < cut:
            head += merge.step(max_lines=1)
        rest = LogMerge(output.logs, Selection(), merge.place)
        assert texts(head) + texts(read_all(rest)) == whole


def test_growing_files_and_new_attempts_are_followed_and_unfinished_lines_wait(output: Output) -> None:
    merge = LogMerge(output.logs, Selection(), LogPosition())
    assert read_all(merge, is_final=False) == []
    output.write(1, "worker-0", stamped(1, "a"), "2026-11-21T07:00:02.000000Z unfin")
    assert texts(read_all(merge, is_final=False)) == ["a"]
    output.write(1, "worker-0", "ished\n")
    output.write(1, "worker-1", stamped(3, "late comer"))
    assert texts(read_all(merge, is_final=False)) == ["unfinished", "late comer"]
    output.write(1, "worker-0", stamped(4, "last words"), "cut o")
    output.write(2, "worker-0", stamped(5, "again"))
    assert texts(read_all(merge, is_final=False)) == ["last words", "cut o", "again"]
    assert merge.attempt == 2
    output.write(2, "worker-0", "the end")
    assert texts(read_all(merge, is_final=False)) == []
    assert texts(read_all(merge, is_final=True)) == ["the end"]


def test_the_offset_is_the_byte_after_the_line(output: Output) -> None:
    output.write(1, "worker-0", stamped(1, "äö"), stamped(2, "b"))
    lines = read_all(LogMerge(output.logs, Selection(), LogPosition()))
    data = (output.root / ".trainmaster/logs/job-1/1/worker-0.log").read_bytes()
    assert [line.offset for line in lines] == [data.index(b"\n") + 1, len(data)]


def test_a_truncated_file_is_read_from_its_start(output: Output) -> None:
    output.write(1, "worker-0", stamped(1, "a"), stamped(2, "b"))
    merge = LogMerge(output.logs, Selection(), LogPosition())
    assert len(read_all(merge, is_final=False)) == 2
    (output.root / ".trainmaster/logs/job-1/1/worker-0.log").write_text(stamped(3, "c"))
    assert texts(read_all(merge, is_final=False)) == ["c"]


def test_a_line_without_end_is_cut(output: Output) -> None:
    output.write(1, "worker-0", "x" * (LINE_LIMIT * 2 + 10))
    assert [len(text) for text in texts(read_all(LogMerge(output.logs, Selection(), LogPosition())))] == [
        LINE_LIMIT,
        LINE_LIMIT,
        10,
    ]


def test_lines_are_chosen_by_role_index_and_rank(output: Output) -> None:
    ranks = {("chief", 0): (0, 1), ("worker", 0): (1, 2), ("worker", 1): (3, 2)}
    output.write(1, "chief-0", stamped(1, "chief"))
    output.write(1, "worker-0", stamped(2, "[rank 1] one"), stamped(3, "[rank 2] two"), stamped(4, "runtime"))
    output.write(1, "worker-1", stamped(5, "[rank 3] three"))

    def chosen(**choice: Any) -> list[str]:
        return texts(read_all(LogMerge(output.logs, Selection(ranks=ranks, **choice), LogPosition())))

    assert chosen(role="worker", index=1) == ["three"]
    assert chosen(rank=0) == ["chief"]
    assert chosen(rank=2) == ["two"]
    assert chosen(role="ps") == []


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("os+ 0", ["loss 0.1"]),
        ("^loss", ["loss 0.1"]),
        ("(?i)LOSS", ["loss 0.1"]),
        ("1$", ["loss 0.1"]),
        ("07:00", []),
        ("é", ["café"]),
    ],
)
def test_search_finds_in_the_text_and_not_in_the_stamp(output: Output, pattern: str, found: list[str]) -> None:
    output.write(1, "worker-0", stamped(1, "start"), stamped(2, "loss 0.1"), stamped(3, "café"))
    selection = Selection(search=LineSearch(pattern))
    assert texts(read_all(LogMerge(output.logs, selection, LogPosition()))) == found


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", r"(a)\1", "x" * 1001, "\ud800", "a{1001}"])
def test_what_is_no_expression_is_refused_in_words(pattern: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LineSearch(pattern)
    assert caught.value.field == "search"


@pytest.mark.timeout(20)
def test_no_expression_takes_for_ever() -> None:
    assert not LineSearch(r"(a+)+$").matches(b"a" * 60_000 + b"b")
    assert not LineSearch(r"(x|x|x)*y").matches(b"x" * 60_000)


@settings(max_examples=500, deadline=None)
@given(
    pattern=st.lists(
        st.sampled_from(
            [
                "a",
                "b",
                ".",
                "^",
                "$",
                "|",
                "(",
                ")",
                "[^a]",
                "[]a^]",
                "[[:alpha:]$]",
                "\\^",
                "\\b",
                "*",
                "?",
                "\\A",
                "\\z",
                "\\p{^Greek}",
                "x",
            ]
        ),
        max_size=7,
    ).map("".join),
    lines=st.lists(st.text(alphabet="abx^$ ]", max_size=5), min_size=1, max_size=4),
)
def test_a_block_is_skipped_only_when_no_line_of_it_matches(pattern: str, lines: list[str]) -> None:
    try:
        search = LineSearch(pattern)
    except InvalidRequest:
        return
    block = "".join(stamped(1, line) for line in lines).encode()
    if search.can_skip(block):
        assert not any(search.matches(line.encode()) for line in lines)


@pytest.mark.parametrize(
    ("pattern", "loose"),
    [
        ("^a$", "a"),
        ("[^a]$", "[^a]"),
        (r"\^", r"\^"),
        ("[]^]^", "[]^]"),
        (r"\Qa^\E", None),
        (r"\p{^Greek}", None),
        ("(^|,)x", "(|,)x"),
    ],
)
def test_anchors_are_taken_out_of_an_expression(pattern: str, loose: str | None) -> None:
    assert without_anchors(pattern) == loose


def test_a_search_without_a_find_stops_now_and_then_and_moves_on(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.storage.logs.merge.STEP_BYTES", 10_000)
    for name in ("worker-0", "worker-1"):
        output.write(1, name, *(stamped(second % 60, "nothing here") for second in range(20_000)))
    output.write(1, "worker-1", stamped(59, "needle"))
    for pattern in ("needle", "needle$"):  # with and without skipping whole blocks
        merge = LogMerge(output.logs, Selection(search=LineSearch(pattern)), LogPosition())
        merge.refresh()
        steps, found, places = 0, [], set()
        while True:
            found += merge.step(is_final=True)
            steps += 1
            places.add(str(merge.place))
            if not merge.is_truncated:
                break
        assert texts(found) == ["needle"]
        assert steps > 3
        assert len(places) > 3


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(st.text(alphabet="ab", max_size=5), max_size=12),
    has_end=st.booleans(),
    wanted=st.integers(0, 15),
    block=st.integers(1, 7),
)
def test_the_tail_is_the_last_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], has_end: bool, wanted: int, block: int
) -> None:
    path = tmp_path_factory.mktemp("tail") / "file"
    text = "\n".join(lines) + ("\n" if has_end and lines else "")
    path.write_text(text)
    fd = os.open(path, os.O_RDONLY)
    try:
        starts = list(line_starts_backwards(fd, len(text), block_bytes=block))
        expected = [0, *(i + 1 for i, c in enumerate(text) if c == "\n" and i + 1 < len(text))] if text else []
        assert starts == expected[::-1]
        assert text[tail_offset(fd, wanted) :] == "".join(text.splitlines(keepends=True)[-wanted:] if wanted else [])
    finally:
        os.close(fd)


def test_a_stream_begins_with_the_newest_attempt_and_some_last_lines_of_each_file(output: Output) -> None:
    output.write(1, "worker-0", stamped(1, "old"))
    output.write(2, "worker-0", *(stamped(second, f"a{second}") for second in range(10)))
    output.write(2, "worker-1", stamped(0, "hangs"))
    place = newest_position(output.logs, Selection(), tail_lines=2)
    assert texts(read_all(LogMerge(output.logs, Selection(), place))) == ["hangs", "a8", "a9"]
    assert read_all(LogMerge(output.logs, Selection(), newest_position(output.logs, Selection(), tail_lines=0))) == []
    first = Selection(attempt=1)
    assert texts(read_all(LogMerge(output.logs, first, newest_position(output.logs, first, tail_lines=None)))) == [
        "old"
    ]


@settings(max_examples=60, deadline=None)
@given(
    files=st.lists(st.lists(st.integers(0, 59), max_size=12), min_size=1, max_size=5),
    batch=st.integers(1, 5),
)
def test_merging_gives_every_line_once_sorted(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], batch: int
) -> None:
    output = Output(tmp_path_factory.mktemp("merge"))
    for index, seconds in enumerate(files):
        output.write(1, f"worker-{index}", *(stamped(second, f"{index} {second}") for second in sorted(seconds)))
    lines = read_all(LogMerge(output.logs, Selection(), LogPosition()), max_lines=batch)
    stamps = [line.raw[:27] for line in lines]
    assert stamps == sorted(stamps)
    assert sorted(texts(lines)) == sorted(f"{i} {s}" for i, seconds in enumerate(files) for s in seconds)


def test_another_jobs_logs_in_the_same_output_are_not_this_ones(output: Output) -> None:
    output.write(1, "worker-0", stamped(1, "mine"))
    other = JobLogs(Tree(output.root), "job-2")
    assert other.attempts() == []
    assert other.files(1) == []
    with pytest.raises(NotFound):
        other.open(1, "worker-0")
