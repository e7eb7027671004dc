from __future__ import annotations

import json
from typing import Any

import pytest

KEEP = {"outputs": 2_592_000.0, "logs": None, "metrics": None, "events": None, "code": None, "jobs": None}
LINE = {"kind": "outputs", "keep_s": 2_592_000.0, "jobs": 37, "bytes": 5 * 2**30, "is_partial": True,
        "oldest": "2026-01-02T00:00:00Z"}  # fmt: skip


@pytest.fixture
def retention_server(server: Any) -> Any:
    server.on("GET", "/projects/vision/retention", {"project": "vision", "keep": KEEP})
    server.on("PATCH", "/projects/vision/retention", {"project": "vision", "keep": KEEP})
    server.on("POST", "/projects/vision/retention/preview", {"project": "vision", "lines": [LINE]})
    return server


def test_a_policy_is_shown_set_and_previewed(cli: Any, retention_server: Any) -> None:
    shown = cli("retention", "show", "vision").output
    assert "30 d" in shown or "30d" in shown
    assert shown.count("for ever") == 5
    cli("retention", "set", "vision", "outputs=30d", "metrics=never")
    body = json.loads(retention_server.requests[-1].content)
    assert body == {"keep": {"outputs": "30d", "metrics": None}}
    assert "at least 5.0 GiB" in cli("retention", "preview", "vision", "outputs=30d").output
    assert cli("retention", "set", "vision", "outputs").exit_code == 2
