"""login, logout, contexts and tokens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from trainmaster.contexts import load_contexts
from typer.testing import Result

Invoke = Callable[..., Result]
HEALTH = {"status": "ok", "version": "1"}


def test_login_keeps_a_context_after_trying_the_token(
    cli: Invoke, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINMASTER_API_URL")
    monkeypatch.delenv("TRAINMASTER_TOKEN")
    server.on("GET", "/health", HEALTH)
    server.on("GET", "/me", {"user": "ann", "is_admin": False, "scopes": ["read"]})
    done = cli("login", "http://lab:8765/", "--token", "-", stdin="tm_lab\n")
    assert done.exit_code == 0, done.output
    assert [request.headers.get("Authorization") for request in server.requests] == [None, "Bearer tm_lab"]
    assert load_contexts().current == "lab-8765"
    assert "tm_lab" not in done.output
    assert "* " in cli("contexts", "list").stdout
    assert cli("token", "show").stdout == "tm_lab\n"
    assert cli("contexts", "use", "nope").exit_code == 5
    assert cli("logout").exit_code == 0
    assert load_contexts().servers == {}


def test_login_never_sends_one_servers_token_to_another(cli: Invoke, server: Any) -> None:
    # TRAINMASTER_TOKEN is set, for the server of TRAINMASTER_API_URL.
    server.on("GET", "/health", HEALTH)
    done = cli("login", "http://evil:8765")
    assert done.exit_code == 2
    assert "--token" in done.stderr
    assert all("Authorization" not in request.headers for request in server.requests)


def test_login_by_a_one_time_link_keeps_the_token_it_gives(cli: Invoke, server: Any) -> None:
    token = {"id": "t", "user": "ann", "name": "login", "scopes": ["read"], "created_at": "2026-11-21T07:00:00Z"}
    server.on("GET", "/health", HEALTH)
    server.on("POST", "/login", {**token, "token": "tm_new"})
    server.on("GET", "/me", {"user": "ann", "is_admin": True, "scopes": ["admin"]})
    assert cli("login", "http://127.0.0.1:8765/api/v1/login?code=abc", "--name", "here").exit_code == 0
    assert server.bodies("POST", "/login") == [{"code": "abc"}]
    assert load_contexts().servers["here"].url == "http://127.0.0.1:8765"
    assert load_contexts().servers["here"].token == "tm_new"


def test_login_by_a_provider_waits_for_another_devices_browser(
    cli: Invoke, server: Any, problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("trainmaster.cli.platform.access.time", SimpleNamespace(sleep=pauses.append))
    token = {"id": "t", "user": "ann", "name": "login", "scopes": ["read"], "created_at": "2026-11-21T07:00:00Z"}
    server.on("GET", "/health", HEALTH)
    started = {"device_code": "d", "user_code": "AB-CD", "verification_uri": "https://login.test/device"}
    server.on("POST", "/login/providers/lab/device", {**started, "expires_in_s": 600, "interval_s": 2})
    done = {"token": {**token, "token": "tm_new"}}
    server.on("POST", "/login/providers/lab/token", {"token": None}, {"token": None, "slow_down_s": 5}, done)
    server.on("GET", "/me", {"user": "ann", "is_admin": False, "scopes": ["read"]})
    made = cli("login", "http://lab:8765", "--provider", "lab", "--name", "lab")
    assert made.exit_code == 0, made.output
    assert "Open https://login.test/device in a browser and enter the code:\nAB-CD\n" in made.stderr
    assert pauses == [2, 2, 7]
    assert server.bodies("POST", "/login/providers/lab/token") == [{"device_code": "d"}] * 3
    assert load_contexts().servers["lab"].token == "tm_new"
    server.on("POST", "/login/providers/lab/token", problem(401, "unauthenticated", "The lab did not log you in."))
    refused = cli("login", "http://lab:8765", "--provider", "lab", "--name", "other")
    assert (refused.exit_code, "did not log you in" in refused.stderr) == (4, True)
    assert "other" not in load_contexts().servers
    for more in (["--token", "tm_x"], ["--link"]):
        assert cli("login", "http://lab:8765", "--provider", "lab", *more).exit_code == 2


def test_login_without_a_token_names_the_providers(cli: Invoke, server: Any) -> None:
    server.on("GET", "/health", HEALTH)
    providers = [{"name": "lab", "label": "The lab"}, {"name": "staff", "label": "Staff"}]
    server.on("GET", "/login/providers", {"items": providers, "next_cursor": None})
    done = cli("login", "http://lab:8765")
    assert done.exit_code == 2
    assert "use `--provider lab` or `--provider staff`" in " ".join(done.stderr.split())


def test_a_bad_token_is_not_stored(cli: Invoke, server: Any, problem: Any) -> None:
    server.on("GET", "/health", HEALTH)
    server.on("GET", "/me", problem(401, "unauthenticated", "This token is not known."))
    done = cli("login", "http://lab:8765", "--token", "tm_bad")
    assert done.exit_code == 4
    assert load_contexts().servers == {}


def test_a_token_that_no_header_carries_is_reported_and_not_sent(cli: Invoke, server: Any) -> None:
    server.on("GET", "/health", HEALTH)
    for arguments, stdin in ((["--token", "tm_…"], ""), (["--token", "-"], "tm_ü\n")):
        done = cli("login", "http://lab:8765", *arguments, stdin=stdin)
        assert "--token is not a valid token: tokens have only ASCII letters" in done.stderr
        assert "bug" not in done.stderr
    assert server.count("GET", "/me") == 0


@pytest.mark.parametrize(
    ("url", "answer", "sentence"),
    [
        ("notaurl.invalid", httpx.ConnectError("no such name"), "the host name notaurl.invalid cannot be resolved"),
        ("http://127.0.0.1:1", httpx.ConnectError("refused"), "no server listens on port 1"),
        ("http://127.0.0.1:1", httpx.Response(200, text="<html>"), "is not a Trainmaster server"),
        ("http://127.0.0.1:1", httpx.Response(404), "is not a Trainmaster server"),
    ],
)
def test_login_looks_at_the_address_before_it_asks_for_a_token(
    url: str, answer: Any, sentence: str, cli: Invoke, server: Any
) -> None:
    server.on("GET", "/health", answer)
    done = cli("login", url)
    assert done.exit_code == 3
    assert sentence in done.stderr
    assert "trainmaster login URL" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("url", ["http://", "http://host:port", "http://[::1", "ftp://host"])
def test_what_is_no_address_is_reported(url: str, cli: Invoke, server: Any) -> None:
    done = cli("login", url)
    assert done.exit_code == 2
    assert "is not a URL" in done.stderr
    assert server.requests == []


def test_a_link_that_logs_a_browser_in_is_printed_alone(cli: Invoke, server: Any) -> None:
    made = {"user": "ann", "code": "abc", "expires_at": "2026-11-21T08:00:00Z"}
    server.on("POST", "/login/codes", made)
    done = cli("login", "--link")
    assert done.stdout == "http://server.test:8765/login?code=abc\n"
    assert "as ann, once" in done.stderr
    assert json.loads(cli("login", "--link", "--json").stdout)["user"] == "ann"
    assert load_contexts().servers == {}
    assert cli("login", "--link", "http://lab:8765").exit_code == 2
    assert cli("login").exit_code == 2
    assert "is empty; give the server's URL" in cli("login", "").stderr


def test_the_platform_of_this_machine_cannot_be_forgotten(
    cli: Invoke, no_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINMASTER_API_URL")
    assert "not logged in to any server" in cli("logout").stderr
    (no_config / "up.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid()}))
    for arguments in (["logout"], ["logout", "local"], ["contexts", "remove", "local"]):
        done = cli(*arguments)
        assert done.exit_code == 6
        assert "cannot be removed" in done.stderr


def test_platform_admins_list_the_tokens_of_others(cli: Invoke, server: Any) -> None:
    server.on("GET", "/tokens", {"items": []})
    cli("token", "list")
    cli("token", "list", "--user", "bob")
    cli("token", "list", "--all")
    requested = [{k: v for k, v in r.url.params.items() if k != "limit"} for r in server.requests]
    assert requested == [{}, {"user": "bob"}, {"all_users": "true"}]
    assert cli("token", "list", "--all", "--user", "bob").exit_code == 2


def test_a_token_is_revoked_by_its_id_or_by_the_name_of_one_valid_token(
    cli: Invoke, server: Any, page: Any, problem: Any
) -> None:
    past = "2026-01-01T07:00:00Z"
    ci = {"user": "ann", "name": "ci", "scopes": ["read"], "created_at": past}
    tokens = [{**ci, "id": "token-1"}, {**ci, "id": "token-2", "revoked_at": past}]
    server.on("GET", "/tokens", page(*tokens))
    server.on("DELETE", "/tokens/token-1", httpx.Response(204))
    server.on("DELETE", "/tokens/ci", problem(404, "not_found", "You have no token with the ID ci."))
    assert cli("token", "revoke", "token-1").stdout == "token-1 revoked\n"
    assert server.count("GET", "/tokens") == 0
    assert cli("token", "revoke", "ci").stdout == "token-1 revoked\n"
    server.on("GET", "/tokens", page(*tokens, {**ci, "id": "token-3"}))
    assert "give the ID of one: token-1, token-3." in cli("token", "revoke", "ci").stderr
    server.on("GET", "/tokens", page(tokens[1]))
    assert "no token with the ID ci" in cli("token", "revoke", "ci").stderr
    assert server.count("DELETE", "/tokens/token-1") == 2
