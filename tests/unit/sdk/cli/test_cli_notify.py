"""notify."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

Invoke = Callable[..., Result]

CHANNEL = {
    "id": "channel-1",
    "project": None,
    "service": "ntfy: ntfys://topic",
    "description": "",
    "event_types": ["job.failed"],
    "is_enabled": True,
    "created_at": "2026-11-21T07:00:00Z",
}
NOTIFICATION = {
    "id": 3,
    "event_type": "job.failed",
    "text": "job.failed: digits (job-1) in vision",
    "state": "sent",
    "attempts": 1,
    "error": "",
    "created_at": "2026-11-21T07:00:00Z",
    "finished_at": "2026-11-21T07:00:02Z",
}


@pytest.fixture
def channels(server: Any, page: Any) -> Any:
    server.on("GET", "/notification-channels", page(CHANNEL))
    server.on("POST", "/notification-channels", CHANNEL)
    server.on("PATCH", "/notification-channels/channel-1", {**CHANNEL, "is_enabled": False})
    server.on("POST", "/notification-channels/channel-1/test", NOTIFICATION)
    server.on("GET", "/notification-channels/channel-1/notifications", page(NOTIFICATION))
    return server


def test_a_channel_is_of_the_user_or_of_a_project_and_its_url_may_come_from_stdin(cli: Invoke, channels: Any) -> None:
    assert "channel-1" in cli("notify", "add", "ntfys://topic").stdout
    cli("notify", "add", "-", "-p", "vision", "-e", "storage.*", stdin="slack://a/b/c\n")
    own, of_project = channels.bodies("POST", "/notification-channels")
    assert (own["url"], own["project"]) == ("ntfys://topic", None)
    assert (of_project["url"], of_project["project"]) == ("slack://a/b/c", "vision")
    assert of_project["event_types"] == ["storage.*"]


def test_channels_and_their_history_are_listed_and_changed(cli: Invoke, channels: Any) -> None:
    assert "(your jobs)" in cli("notify").stdout
    assert json.loads(cli("notify", "list", "--json").stdout)[0]["id"] == "channel-1"
    assert "job.failed: digits" in cli("notify", "history", "channel-1").stdout
    assert "disabled" in cli("notify", "change", "channel-1", "--disable").stdout
    assert channels.bodies("PATCH", "/notification-channels/channel-1") == [{"is_enabled": False}]
    assert cli("notify", "change", "channel-1").exit_code == 2
    assert "notify history channel-1" in cli("notify", "test", "channel-1").stdout
