"""webhook."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

Invoke = Callable[..., Result]

WEBHOOK = {
    "id": "webhook-1",
    "project": "vision",
    "url": "https://example.com/hook",
    "description": "",
    "event_types": ["job.*"],
    "is_enabled": True,
    "disabled_reason": "",
    "old_secret_until": None,
    "waiting": 3,
    "dead": 1,
    "created_at": "2026-11-21T07:00:00Z",
}
DELIVERY = {
    "id": 7,
    "event_id": 812,
    "event_type": "job.failed",
    "object": "job-1",
    "state": "dead",
    "attempts": 11,
    "next_at": None,
    "response_status": 500,
    "response_excerpt": "no",
    "error": "status 500",
    "duration_ms": 12,
    "created_at": "2026-11-21T07:00:00Z",
    "finished_at": "2026-11-22T09:00:00Z",
    "body": "{}",
}


@pytest.fixture
def hooks(server: Any, page: Any) -> Any:
    server.on("GET", "/webhooks", page(WEBHOOK))
    server.on("POST", "/webhooks", {**WEBHOOK, "secret": "whsec_abc"})
    server.on("PATCH", "/webhooks/webhook-1", {**WEBHOOK, "is_enabled": False})
    server.on("POST", "/webhooks/webhook-1/rotate", {**WEBHOOK, "secret": "whsec_new"})
    server.on("POST", "/webhooks/webhook-1/test", DELIVERY)
    server.on("GET", "/webhooks/webhook-1/deliveries", page(DELIVERY))
    server.on("POST", "/webhooks/webhook-1/deliveries/7/replay", DELIVERY)
    return server


def test_a_webhook_is_created_for_a_project_or_the_platform(cli: Invoke, hooks: Any) -> None:
    done = cli("webhook", "create", "https://example.com/hook", "-e", "job.*", "-p", "vision")
    assert "whsec_abc" in done.stdout
    cli("webhook", "create", "https://example.com/hook", "--platform")
    vision, platform = hooks.bodies("POST", "/webhooks")
    assert (vision["project"], vision["event_types"]) == ("vision", ["job.*"])
    assert platform["project"] is None
    assert cli("webhook", "create", "https://x.org", "--platform", "-p", "vision").exit_code == 2


def test_webhooks_and_deliveries_are_listed(cli: Invoke, hooks: Any) -> None:
    assert "https://example.com/hook" in cli("webhook").stdout
    assert json.loads(cli("webhook", "list", "--json").stdout)[0]["dead"] == 1
    assert "status 500" in cli("webhook", "deliveries", "webhook-1").stdout


def test_changes_rotation_test_and_replay(cli: Invoke, hooks: Any) -> None:
    assert "disabled" in cli("webhook", "change", "webhook-1", "--disable").stdout
    assert hooks.bodies("PATCH", "/webhooks/webhook-1") == [{"is_enabled": False}]
    assert cli("webhook", "change", "webhook-1").exit_code == 2
    assert "whsec_new" in cli("webhook", "rotate", "webhook-1", "--overlap-hours", "2").stdout
    assert "Sending test 7" in cli("webhook", "test", "webhook-1").stdout
    assert "1 message" in cli("webhook", "replay", "webhook-1", "--dead").stderr
    assert "1 message" in cli("webhook", "replay", "webhook-1", "7").stderr
    assert cli("webhook", "replay", "webhook-1").exit_code == 2
