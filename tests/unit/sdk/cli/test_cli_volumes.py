"""volumes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

Invoke = Callable[..., Result]

SETS: dict[str, Any] = {
    "name": "sets",
    "kind": "pvc",
    "config": {"claim": "sets"},
    "parts": [{"prefix": "a", "access": "read"}, {"prefix": "b", "access": "write"}],
    "grants": [
        {"grantee": "everyone", "access": "read", "prefix": "a"},
        {"grantee": "vision", "access": "write", "prefix": ""},
    ],
    "created_at": "2026-11-21T07:00:00Z",
}


def test_volumes_are_listed_and_shown_with_access_and_grants(cli: Invoke, server: Any) -> None:
    plain = {**SETS, "name": "data", "parts": [{"prefix": "", "access": "write"}], "grants": []}
    server.on("GET", "/volumes", {"items": [plain, SETS]})
    server.on("GET", "/volumes/sets", SETS)
    lines = cli("volumes").stdout.splitlines()
    assert lines[1].split()[:4] == ["data", "pvc", "read,", "write"]
    assert "a: read only; b: read, write" in lines[2]
    assert "everyone read a; vision write" in lines[2]
    shown = cli("volumes", "show", "sets").stdout
    assert "everyone read a; vision write" in shown
    assert "claim=sets" in shown
    assert json.loads(cli("volumes", "show", "sets", "--json").stdout)["grants"] == SETS["grants"]


def test_grants_are_given_and_revoked(cli: Invoke, server: Any) -> None:
    at = "/volumes/sets/grants/vision"
    server.on("PUT", at, {"grantee": "vision", "access": "write", "prefix": "a/b"}).on("DELETE", at, {})
    done = cli("volumes", "grant", "sets", "vision", "write", "--prefix", "a/b/")
    assert done.stdout == "vision may write sets/a/b\n"
    assert server.bodies("PUT", at) == [{"access": "write", "prefix": "a/b"}]
    assert "revoked" in cli("volumes", "revoke", "sets", "vision", "--prefix", "a/b").stdout
    assert dict(server.requests[-1].url.params) == {"prefix": "a/b"}


def test_a_volume_is_registered_with_its_grants(cli: Invoke, server: Any) -> None:
    server.on("POST", "/volumes", SETS)
    add = ("volumes", "add", "sets", "--kind", "pvc", "--config", "claim=sets")
    given = cli(*add, "--grant", "everyone=read:a", "--grant", "vision=write")
    assert given.stdout == "sets registered; jobs use it as sets/path\n"
    (body,) = server.bodies("POST", "/volumes")
    assert [(g["grantee"], g["access"], g.get("prefix", "")) for g in body["grants"]] == [
        ("everyone", "read", "a"),
        ("vision", "write", ""),
    ]
    assert (
        "platform admins alone may use it until `trainmaster volumes grant sets PROJECT|everyone read|write`"
        in cli(*add).stdout
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("grant", "sets", "vision", "all"),
        ("add", "sets", "--root", "/srv", "--grant", "vision"),
        ("add", "sets", "--root", "/srv", "--grant", "vision=all"),
    ],
)
def test_an_unknown_right_is_refused_before_a_request(cli: Invoke, server: Any, arguments: tuple[str, ...]) -> None:
    refused = cli("volumes", *arguments)
    assert refused.exit_code == 2
    assert "neither read nor write" in refused.stderr
    assert server.requests == []
