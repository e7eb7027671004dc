"""logs and events."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from trainmaster.cli.terminal import output
from trainmaster.cli.terminal.output import only_colours, without_escapes
from typer.testing import Result

Invoke = Callable[..., Result]
STREAM = "/jobs/job_1/logs/stream"


def test_logs_name_each_line_and_json_is_one_object_per_line(
    cli: Invoke, server: Any, sse: Any, line_json: Any, job_json: Any
) -> None:
    server.on("GET", "/jobs/mnist", job_json())
    lines = [("line", line_json("one", offset=4)), ("line", line_json("two", offset=4, index=10)), ("end", {})]
    server.on("GET", "/jobs/mnist/logs/stream", httpx.Response(200, content=sse(*lines)))
    done = cli("logs", "mnist", "--role", "worker", "--search", "o", "--tail", "10")
    assert done.stdout == "worker-0 | one\nworker-10 | two\n"
    assert dict(server.requests[1].url.params) == {
        "role": "worker",
        "search": "o",
        "follow": "false",
        "tail_lines": "10",
    }
    reported = [json.loads(line)["text"] for line in cli("logs", "mnist", "--json").stdout.splitlines()]
    assert reported == ["one", "two"]


def test_events_tell_when_what_who_and_why(cli: Invoke, server: Any, page: Any) -> None:
    event = {"id": 1, "at": "2026-11-21T07:00:00Z", "kind": "job.paused", "actor": "user:ann", "reason": "lunch"}
    server.on("GET", "/jobs/mnist/events", page(event))
    done = cli("events", "mnist")
    assert all(part in done.stdout for part in ("job.paused", "user:ann", "lunch"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--attempt", "9"], "mnist has had only 2 attempts"),
        (["--role", "ps"], "mnist has no role ps; it has worker"),
        (["--index", "2"], "its largest role of mnist has 2 replicas, from 0"),
    ],
)
def test_logs_of_what_is_not_there_say_what_there_is(
    arguments: list[str], sentence: str, cli: Invoke, server: Any, job_json: Any
) -> None:
    server.on("GET", "/jobs/mnist", job_json(attempt_count=2))
    done = cli("logs", "mnist", *arguments, "--json")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert sentence in json.loads(done.stderr)["detail"]


def test_who_follows_may_wait_for_the_next_attempt(cli: Invoke, server: Any, sse: Any, job_json: Any) -> None:
    server.on("GET", "/jobs/mnist", job_json(attempt_count=1))
    server.on("GET", STREAM, httpx.Response(200, content=sse(("end", {}))))
    assert cli("logs", "mnist", "--attempt", "2", "-f").exit_code == 0


def test_silence_is_explained(cli: Invoke, server: Any, sse: Any, job_json: Any) -> None:
    waits = {"code": "gpus", "sentence": "needs 8 GPUs", "numbers": {}}
    server.on("GET", "/jobs/mnist", job_json(state="queued", wait_reason=waits))
    server.on("GET", "/jobs/mnist/logs/stream", httpx.Response(200, content=sse(("end", {}))))
    assert cli("logs", "mnist").stderr == "No lines yet; mnist is queued: needs 8 GPUs.\n"
    assert cli("logs", "mnist", "--search", "x").stderr == "No matching lines.\n"


@pytest.mark.parametrize("arguments", [["logs", "-f", "mnist"], ["wait", "mnist"]])
def test_followers_say_why_the_job_waits(
    arguments: list[str], cli: Invoke, server: Any, sse: Any, job_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = {"code": "never_fits", "sentence": "Needs 8 GPUs, and no node has a GPU.", "numbers": {}}
    queued = job_json(state="queued", wait_reason=never)
    has_explained = threading.Event()
    note = output.note

    def note_and_go_on(text: str, style: str = "") -> None:
        note(text, style)
        has_explained.set()

    def end(_request: httpx.Request) -> httpx.Response:
        assert has_explained.wait(30)
        server.on("GET", "/jobs/job_1", job_json(state="cancelled"))
        return httpx.Response(200, content=sse(("end", {})))

    monkeypatch.setattr(output, "note", note_and_go_on)
    server.on("GET", "/jobs/mnist", queued)
    server.on("GET", "/jobs/job_1", queued)
    server.on("GET", STREAM, end)
    server.on("GET", "/jobs/job_1/events", end)
    assert "queued: cannot run on the present nodes: needs 8 GPUs, and no node has a GPU." in cli(*arguments).stderr


def test_a_pipe_gets_the_bytes_as_they_are(cli: Invoke, server: Any, sse: Any, line_json: Any) -> None:
    line = ("line", line_json("\x1b[31mred\x1b[0m \x1b]0;t\x07\rx", offset=4))
    server.on("GET", "/jobs/mnist/logs/stream", httpx.Response(200, content=sse(line, ("end", {}))))
    assert cli("logs", "mnist").stdout == "worker-0 | \x1b[31mred\x1b[0m \x1b]0;t\x07\rx\n"


@pytest.mark.parametrize(
    ("line", "shown", "plain"),
    [
        ("plain äöü\ttext", "plain äöü\ttext", "plain äöü\ttext"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[38:2:1:2:3mtrue\x1b[m", "\x1b[38:2:1:2:3mtrue\x1b[m", "true"),
        ("a\x1b[2Jb\x1b[10;5Hc\x1b[?25ld", "abcd", "abcd"),
        ("a\x1b]0;title\x07b", "ab", "ab"),
        ("a\x1b]52;c;ZXZpbA==\x1b\\b", "ab", "ab"),
        ("a\x1b]8;;http://evil never ends", "a", "a"),
        ("a\x1bPq#0\x1b\\b\x1b_apc\x1b\\c", "abc", "abc"),
        ("a\x9b2Jb\x9d0;t\x9cc", "abc", "abc"),
        ("a\x1bcb\x1b(0c\x1b7d", "abcd", "abcd"),
        ("a\x07\x08\x7fb\x1b", "ab", "ab"),
        ("\x1b[>4;1mx\x1b[?1my", "xy", "xy"),  # end in m, but set modes
        (" 10%\r 50%\r100%\r", "100%", None),
    ],
)
def test_a_terminal_gets_colours_and_nothing_else(line: str, shown: str, plain: str | None) -> None:
    assert only_colours(line) == shown
    if plain is not None:
        assert without_escapes(line) == plain


def test_that_there_are_earlier_attempts_is_reported_once(cli: Invoke, server: Any, sse: Any, line_json: Any) -> None:
    lines = [("line", line_json(text, offset=4 * place, attempt=3)) for place, text in enumerate(("one", "two"))]
    server.on("GET", "/jobs/mnist/logs/stream", httpx.Response(200, content=sse(*lines, ("end", {}))))
    done = cli("logs", "mnist")
    assert done.stdout == "worker-0 | one\nworker-0 | two\n"
    assert done.stderr == (
        "Attempt 3. 2 earlier attempts are not shown here; `trainmaster logs mnist --attempt 1` shows the first.\n"
    )


def test_times_of_another_day_stand_below_its_date(cli: Invoke, server: Any, sse: Any, line_json: Any) -> None:
    days = ("2026-03-01T12:00:00Z", "2026-03-01T12:00:01Z", "2026-03-03T12:00:00Z")
    lines = [("line", {**line_json("x", offset=place), "at": at}) for place, at in enumerate(days)]
    server.on("GET", "/jobs/mnist/logs/stream", httpx.Response(200, content=sse(*lines, ("end", {}))))
    reported = cli("logs", "mnist", "--timestamps").stdout.splitlines()
    assert [line for line in reported if line.startswith("──")] == ["── 2026-03-01 ──", "── 2026-03-03 ──"]
    assert "──" not in cli("logs", "mnist").stdout
