from __future__ import annotations

from typing import Any


def test_holders_are_reported_whole_to_members_and_without_names_to_others(house: Any) -> None:
    own = house.call("viewer", "GET", "/holders").json()["items"]
    assert [(item["job"], item["role"], item["index"], item["gpus"]) for item in own] == [
        ("digits", "worker", 0, ["0"]),
        ("digits", "worker", 1, ["1"]),
    ]
    others = house.call("stranger", "GET", "/holders").json()["items"]
    assert [(item["node"], item["gpus"], item["job"], item["project"], item["role"]) for item in others] == [
        ("node-a", ["0"], None, None, None),
        ("node-a", ["1"], None, None, None),
    ]


def test_holders_come_in_pages(house: Any) -> None:
    first = house.call("viewer", "GET", "/holders", params={"limit": 1}).json()
    assert [item["index"] for item in first["items"]] == [0]
    second = house.call("viewer", "GET", "/holders", params={"limit": 1, "cursor": first["next_cursor"]}).json()
    assert [item["index"] for item in second["items"]] == [1]
    assert second["next_cursor"] is None
