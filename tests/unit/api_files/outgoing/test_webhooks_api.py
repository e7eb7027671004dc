"""Webhooks by the API: what is refused, secrets that are shown once, and replays."""

from __future__ import annotations

from typing import Any

import pytest

from core.db.engine import unit_of_work
from core.db.tables import Webhook, WebhookDelivery
from core.secrets import unseal

HOOK = {"project": "vision", "url": "https://example.com/hook", "event_types": ["job.*", "*"]}


def create(house: Any, who: str = "owner", **changes: Any) -> Any:
    return house.call(who, "POST", "/webhooks", json={**HOOK, **changes})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": "ftp://example.com"}, "url"),
        ({"url": "https://"}, "url"),
        ({"url": "https://example.com:0/"}, "url"),
        ({"url": "https://ann:secret@example.com/"}, "url"),
        ({"url": "https://bücher.example/"}, "url"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "url"),
        ({"url": "http://[::1]:8765/api"}, "url"),
        ({"event_types": []}, "event_types"),
        ({"event_types": ["job"]}, "event_types.0"),
        ({"event_types": ["Job.*"]}, "event_types.0"),
    ],
)
def test_a_wrong_webhook_is_refused_with_its_field(house: Any, changes: dict[str, Any], field: str) -> None:
    answer = create(house, **changes)
    assert answer.status_code == 422
    assert field in answer.text


def test_the_secret_is_shown_once_and_stored_sealed(house: Any) -> None:
    made = create(house).json()
    secret = made.pop("secret")
    assert secret.startswith("whsec_")
    assert house.call("owner", "GET", f"/webhooks/{made['id']}").json() == made
    rotated = house.call("owner", "POST", f"/webhooks/{made['id']}/rotate", json={"overlap_hours": 1}).json()
    assert rotated["secret"] != secret
    assert rotated["old_secret_until"] == "2026-11-21T08:00:00Z"
    with unit_of_work(house.sessions, read_only=True) as session:
        row = session.get_one(Webhook, made["id"])
        assert secret.encode() not in row.ciphertext
        key = house.app.state.context.key
        assert unseal(key, "project-vision", row.id, row.old_ciphertext or b"") == secret
    assert "whsec_" not in house.call("owner", "GET", "/webhooks").text
    assert "whsec_" not in house.call("root", "GET", "/events").text


def test_platform_webhooks_are_for_platform_admins(house: Any) -> None:
    assert create(house, project=None).status_code == 403
    made = create(house, "root", project=None).json()
    assert house.call("owner", "GET", f"/webhooks/{made['id']}").status_code == 404
    assert [row["id"] for row in house.call("owner", "GET", "/webhooks").json()["items"]] == []
    assert [row["id"] for row in house.call("root", "GET", "/webhooks").json()["items"]] == [made["id"]]


def test_a_dead_delivery_is_replayed_and_a_disabled_webhook_sends_none(house: Any) -> None:
    webhook = create(house).json()["id"]
    made = house.call("owner", "POST", f"/webhooks/{webhook}/test").json()
    with unit_of_work(house.sessions) as session:
        row = session.get_one(WebhookDelivery, made["id"])
        row.state, row.attempts, row.finished_at = "dead", 11, house.now
    assert house.call("owner", "GET", f"/webhooks/{webhook}").json()["dead"] == 1
    place = f"/webhooks/{webhook}/deliveries"
    (dead,) = house.call("owner", "GET", place, params={"state": "dead"}).json()["items"]
    assert (dead["event_type"], dead["next_at"]) == ("webhook.test", None)
    again = house.call("owner", "POST", f"{place}/{dead['id']}/replay").json()
    assert (again["state"], again["attempts"], again["finished_at"]) == ("waiting", 0, None)
    assert house.call("owner", "POST", f"{place}/99/replay").status_code == 404
    house.call("owner", "PATCH", f"/webhooks/{webhook}", json={"is_enabled": False})
    assert house.call("owner", "POST", f"/webhooks/{webhook}/test").status_code == 409
    assert house.call("owner", "POST", f"{place}/{dead['id']}/replay").status_code == 409
    assert house.call("owner", "DELETE", f"/webhooks/{webhook}").status_code == 204
    with unit_of_work(house.sessions, read_only=True) as session:
        assert session.get(WebhookDelivery, dead["id"]) is None


def test_deliveries_are_paged(house: Any) -> None:
    webhook = create(house).json()["id"]
    ids = [house.call("owner", "POST", f"/webhooks/{webhook}/test").json()["id"] for _ in range(3)]
    first = house.call("owner", "GET", f"/webhooks/{webhook}/deliveries", params={"limit": 2}).json()
    more = {"limit": 2, "cursor": first["next_cursor"]}
    second = house.call("owner", "GET", f"/webhooks/{webhook}/deliveries", params=more).json()
    assert [row["id"] for row in first["items"] + second["items"]] == ids[::-1]
    assert second["next_cursor"] is None
