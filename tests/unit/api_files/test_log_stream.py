"""The stream itself: files grow, attempts follow each other, the job ends, the server goes down."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import CapacityLimiter

from api.app.graceful_shutdown import GracefulShutdown
from api.logs import stream as module
from api.logs.service import JobStatus
from api.logs.stream import LogStream
from core.domain.errors import NotFound, Unavailable
from core.domain.jobs.states import JobState
from core.storage.logs.files import JobLogs
from core.storage.logs.merge import LogMerge, LogPosition, Selection
from core.storage.tree import Tree


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


class Stage:
    """A job that the test plays."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = JobState.QUEUED
        self.attempts = 0
        self.error: Exception | None = None
        self.shutdown = GracefulShutdown()

    def log(self, attempt: int, name: str, text: str) -> None:
        folder = self.root / ".trainmaster/logs/job" / str(attempt)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.log").open("a") as file:
            file.write(text)

    def look_now(self) -> JobStatus:
        return JobStatus("job", self.state, self.attempts, None)

    async def read_status(self) -> JobStatus:
        if self.error is not None:
            raise self.error
        return self.look_now()

    async def wait(self, timeout_s: float) -> bool:
        await anyio.sleep(timeout_s)
        return False

    def stream(self, *, follow: bool = True, place: LogPosition | None = None) -> LogStream:
        return LogStream(
            merge=LogMerge(JobLogs(Tree(self.root), "job"), Selection(), place or LogPosition()),
            read_status=self.read_status,
            wait=self.wait,
            shutdown=self.shutdown,
            limiter=CapacityLimiter(2),
            first_status=self.look_now(),
            follow=follow,
        )


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    for name in ("POLL_S", "POLL_IDLE_S", "STATUS_S", "STATUS_SOON_S"):
        monkeypatch.setattr(module, name, 0.005)
    return Stage(tmp_path)


async def reported(stream: LogStream) -> AsyncIterator[tuple[str, Any]]:
    async for chunk in stream.events():
        for block in chunk.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and line[0] != ":")
            if "event" in fields:
                data = json.loads(fields["data"])
                yield fields["event"], data.get("text") or data.get("state") or data.get("code")


async def play(
    stage: Stage, stream: LogStream, script: dict[tuple[str, Any], Callable[[], None]]
) -> list[tuple[str, Any]]:
    """Everything that was told; what ``script`` has for an event is done when it is told."""
    seen = []
    with anyio.fail_after(20):
        async for event in reported(stream):
            seen.append(event)
            script.get(event, lambda: None)()
    return seen


async def test_a_job_is_followed_from_the_queue_over_a_restart_to_its_end(stage: Stage) -> None:
    def start() -> None:
        stage.state, stage.attempts = JobState.RUNNING, 1
        stage.log(1, "worker-0", "one\n")

    def restart() -> None:
        stage.log(1, "worker-0", "last words")
        stage.log(2, "worker-0", "two\n")
        stage.attempts = 2

    def end() -> None:
        stage.log(2, "worker-1", "late\nunfinished")
        stage.state = JobState.SUCCEEDED

    script = {("state", "queued"): start, ("line", "one"): restart, ("line", "two"): end}
    seen = await play(stage, stage.stream(), script)
    assert [text for kind, text in seen if kind == "line"] == ["one", "last words", "two", "late", "unfinished"]
    assert seen[-1] == ("end", "succeeded")
    assert ("state", "running") in seen


async def test_without_follow_it_ends_with_what_is_there(stage: Stage) -> None:
    stage.state = JobState.RUNNING
    stage.log(1, "worker-0", "one\n")
    seen = await play(stage, stage.stream(follow=False), {})
    assert seen == [("state", "running"), ("line", "one"), ("end", "running")]


async def test_the_server_going_down_ends_the_stream_without_an_end(stage: Stage) -> None:
    stage.log(1, "worker-0", "one\n")

    def close() -> None:
        stage.shutdown.is_stopping = True

    seen = await play(stage, stage.stream(), {("line", "one"): close})
    assert seen == [("state", "queued"), ("line", "one")]


async def test_a_right_that_was_lost_ends_the_stream_with_the_reason(stage: Stage) -> None:
    stage.log(1, "worker-0", "one\n")

    def lose() -> None:
        stage.error = NotFound("There is no job.")
        stage.log(1, "worker-0", "two\n")

    seen = await play(stage, stage.stream(), {("line", "one"): lose})
    assert seen[-1] == ("error", "not_found")


async def test_lines_go_on_while_the_database_is_away(stage: Stage) -> None:
    stage.log(1, "worker-0", "one\n")

    def away() -> None:
        stage.error = Unavailable("away")
        stage.log(1, "worker-0", "two\n")

    def back() -> None:
        stage.error = None
        stage.state = JobState.FAILED

    seen = await play(stage, stage.stream(), {("line", "one"): away, ("line", "two"): back})
    assert seen[-2:] == [("state", "failed"), ("end", "failed")]


async def test_silence_is_broken_by_comments(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.01)
    with anyio.fail_after(20):
        async for chunk in stage.stream().events():
            if chunk == b": alive\n\n":
                return


async def test_many_streams_share_the_readers(stage: Stage) -> None:
    stage.state = JobState.SUCCEEDED
    stage.log(1, "worker-0", "".join(f"line {n}\n" for n in range(2000)))
    counts = []

    async def one() -> None:
        seen = await play(stage, stage.stream(), {})
        counts.append(sum(kind == "line" for kind, _ in seen))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(one)
    assert counts == [2000] * 20


async def test_with_hundreds_of_files_only_the_last_line_of_a_batch_carries_the_place(stage: Stage) -> None:
    stage.state = JobState.SUCCEEDED
    for index in range(40):
        stage.log(1, f"worker-{index}", f"w{index}\n" * 30)
    ids, count, longest = 0, 0, 0
    async for chunk in stage.stream().events():
        ids += chunk.count(b"\nid: ") + chunk.startswith(b"id: ")
        count += chunk.count(b"event: line")
        longest = max(longest, len(chunk))
    assert count == 1200
    assert 0 < ids <= 4
