"""Notification channels by the API: URLs are sealed and masked, and everybody has their own."""

from __future__ import annotations

from typing import Any

import pytest

from core.db.engine import unit_of_work
from core.db.tables import NotificationChannel
from core.secrets import unseal

URL = "mailtos://ann:hush-hush@gmail.com?to=bob@example.com"
PLACE = "/notification-channels"


def test_the_url_is_stored_sealed_and_shown_masked(house: Any) -> None:
    made = house.call("member", "POST", PLACE, json={"url": URL}).json()
    assert made["service"].startswith("E-Mail: mailtos://")
    assert "hush" not in house.call("member", "GET", PLACE).text
    with unit_of_work(house.sessions, read_only=True) as session:
        row = session.get_one(NotificationChannel, made["id"])
        assert unseal(house.app.state.context.key, "user-member", row.id, row.ciphertext) == URL
    assert "hush" not in house.call("root", "GET", "/events").text


@pytest.mark.parametrize("url", ["nonsense://x", "syslog://", "x"])
def test_a_url_that_no_service_has_is_refused(house: Any, url: str) -> None:
    answer = house.call("member", "POST", PLACE, json={"url": url})
    assert answer.status_code == 422
    assert answer.json()["field"] == "url"


def test_a_users_channel_is_the_users_alone(house: Any) -> None:
    made = house.call("member", "POST", PLACE, json={"url": "ntfys://topic", "event_types": ["job.failed"]}).json()
    for who in ("owner", "root", "stranger"):
        assert house.call(who, "GET", f"{PLACE}/{made['id']}/notifications").status_code == 404
        assert house.call(who, "GET", PLACE).json()["items"] == []
    assert house.call("member", "POST", f"{PLACE}/{made['id']}/test").status_code == 202
    (sent,) = house.call("member", "GET", f"{PLACE}/{made['id']}/notifications").json()["items"]
    assert (sent["state"], sent["text"]) == ("waiting", "channel.test: a test by member")
    changed = house.call("member", "PATCH", f"{PLACE}/{made['id']}", json={"url": "ntfys://new", "is_enabled": False})
    assert (changed.json()["is_enabled"], changed.json()["service"]) == (False, "ntfy: ntfys://new")
    assert house.call("member", "POST", f"{PLACE}/{made['id']}/test").status_code == 409
    assert house.call("member", "DELETE", f"{PLACE}/{made['id']}").status_code == 204
