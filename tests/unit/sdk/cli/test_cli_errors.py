"""What goes wrong, as people and programs read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx
import pytest
from typer.testing import Result

Invoke = Callable[..., Result]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["list", "--state", "runing"], "is none of queued"),
        (["list", "--columns", "id,colour"], "'colour' is none of"),
        (["list", "--since", "yesterdayish"], "is not a time: write 14:20 for today"),
        (["wait", "mnist", "--timeout", "soon"], "is not a duration"),
        (["run", "--env", "novalue", "--", "python"], "is not KEY=VALUE"),
        (["clone", "mnist", "--set", "env.LR"], "is not PATH=VALUE"),
        (["cp", "mnist/model.pt", "."], "is not JOB:PATH"),
        (["token", "create", "ci", "--scope", "root"], "none of read, write, admin"),
        (["delete", "mnist", "--files"], "--yes"),
        (["login", "ftp://host"], "is not a URL"),
        (["frobnicate"], "No such command"),
        (["lst"], "No such command 'lst'. Did you mean 'list'"),
        (
            ["stop", "mnist"],
            "'stop'. Did you mean `trainmaster down` (stop the platform on this machine) or `trainmaster cancel` (c",
        ),
        (["status"], "Did you mean `trainmaster list` (list jobs), `trainmaster show` (show one job) or `trainmaster "),
        (["ps"], "Did you mean `trainmaster list` (list jobs)?"),
        (["study", "cancel", "lr"], "Did you mean `trainmaster study stop` (cancel the running trials and end the "),
        (["run", "--workers", "-1", "--", "x"], "--workers: '-1' is not a number of workers; write it like 3, or 2:4."),
        (
            ["run", "--workers", "2:x", "--", "x"],
            "--workers: '2:x' is not a number of workers; write it like 3, or 2:4.",
        ),
        (["run", "--priority", "400", "--", "x"], "--priority must be at most 100, not 400."),
        (["up", "--executor", "z"], "--executor must be one of 'process', 'docker', 'kubernetes', not z."),
        (["show"], "JOB is missing."),
    ],
)
def test_wrong_use_is_reported_with_code_2(arguments: list[str], sentence: str, cli: Invoke) -> None:
    done = cli(*arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.endswith(" --help`.\n")


def test_no_server_is_one_sentence_and_code_3(cli: Invoke, server: Any) -> None:
    server.on("GET", "/jobs", httpx.ConnectError("refused"))
    done = cli("list")
    assert done.exit_code == 3
    assert done.stderr == (
        "Error: No Trainmaster server answers at http://server.test:8765: start one with `trainmaster up`, or "
        "log in to "
        "another with `trainmaster login URL`.\n"
    )


def test_the_servers_requests_are_reported_as_commands(cli: Invoke, server: Any, problem: Any) -> None:
    server.on("GET", "/jobs/nosuch", problem(404, "not_found", "There is no job; `GET /api/v1/jobs` lists yours."))
    assert cli("show", "nosuch").stderr == "Error: There is no job; `trainmaster list` lists yours.\n"


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        ("begins_at: that is past.", "--from: that is past."),
        ("Cluster.like: there is no node 'x'.", "--like: there is no node 'x'."),
        ("Days: must be less than 366.", "--days: must be less than 366."),
        ("settings.order: is one of fifo.", "order: is one of fifo."),
        ("name: is taken.", "name: is taken."),
    ],
)
def test_the_servers_fields_are_reported_as_options(
    reported: str, shown: str, cli: Invoke, server: Any, problem: Any
) -> None:
    server.on("GET", "/jobs/mnist", problem(422, "invalid_request", reported))
    assert cli("show", "mnist").stderr == f"Error: {shown}\n"


def test_times_of_the_server_are_informed_where_the_reader_is(cli: Invoke, server: Any, problem: Any) -> None:
    at = "2026-11-21T07:00:00+00:00"
    server.on("GET", "/jobs/mnist", problem(409, "conflict", f"It is reserved from {at} on."))
    local = datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    assert cli("show", "mnist").stderr == f"Error: It is reserved from {local} on.\n"


def test_who_named_no_project_reads_how_to(cli: Invoke, server: Any, problem: Any) -> None:
    refused = "There is no project 'default' that you may see. `GET /api/v1/projects` lists yours."
    server.on("GET", "/jobs", problem(404, "not_found", refused))
    reported = cli("list")
    assert reported.exit_code == 5
    assert "--project, or set TRAINMASTER_PROJECT" in reported.stderr
    server.on("GET", "/jobs", problem(404, "not_found", refused.replace("default", "nosuch")))
    assert "TRAINMASTER_PROJECT" not in cli("list", "--project", "nosuch").stderr


def test_a_context_that_is_not_there_is_code_5(cli: Invoke) -> None:
    assert cli("--context", "nope", "list").exit_code == 5
    assert cli("contexts", "use", "nope").exit_code == 5


def test_no_context_is_code_3_too(cli: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINMASTER_API_URL")
    assert cli("list").exit_code == 3


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (401, "token_expired", 4),
        (403, "forbidden", 4),
        (404, "not_found", 5),
        (409, "conflict", 6),
        (500, "internal", 1),
    ],
)
def test_each_family_of_errors_has_its_exit_code(
    status: int, code: str, exit_code: int, cli: Invoke, server: Any, problem: Any
) -> None:
    server.on("GET", "/jobs/mnist", problem(status, code, "A sentence.", request_id="r7"))
    done = cli("show", "mnist")
    assert done.exit_code == exit_code
    assert "A sentence." in done.stderr
    assert "Traceback" not in done.output
    as_json = cli("show", "mnist", "--json")
    assert as_json.exit_code == exit_code
    assert as_json.stdout == ""
    assert json.loads(as_json.stderr)["code"] == code


def test_a_bug_is_no_traceback_unless_requested(cli: Invoke, monkeypatch: pytest.MonkeyPatch, server: Any) -> None:
    server.on("GET", "/jobs", RuntimeError("surprise"))
    done = cli("list")
    assert done.exit_code == 1
    assert "RuntimeError: surprise" in done.stderr
    assert "TRAINMASTER_DEBUG=1" in done.stderr
    assert "Traceback" not in done.stderr
    monkeypatch.setenv("TRAINMASTER_DEBUG", "1")
    assert isinstance(cli("list").exception, RuntimeError)


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        (["list", "--frobnicate", "--json"], "No such option: --frobnicate"),
        (["--json", "frobnicate"], "No such option: --json"),
        (["frobnicate", "--json"], "No such command 'frobnicate'"),
        (["list", "--json", "--limit", "many"], "--limit must be a whole number, not many."),
        (["show", "--json"], "JOB is missing"),
    ],
)
def test_wrong_use_is_a_problem_for_programs(arguments: list[str], detail: str, cli: Invoke) -> None:
    done = cli(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    problem = json.loads(done.stderr)
    assert problem["code"] == "wrong_use"
    assert detail in problem["detail"]


def test_the_json_of_a_jobs_own_command_is_not_ours(cli: Invoke) -> None:
    assert cli("run", "--frobnicate", "--", "train", "--json").stderr.startswith("Error: No such option")


def test_an_expired_token_is_not_informed_to_make_a_new_one_by_itself(cli: Invoke, server: Any, problem: Any) -> None:
    server.on("GET", "/jobs", problem(401, "token_expired", "This token has expired."))
    assert "Ask a platform admin" in cli("list").stderr
