"""The admins' nouns and archives again, on PostgreSQL."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import select

from core.db.engine import unit_of_work
from core.db.tables import Membership, User
from tests.unit.api_files.test_admin_resources import *  # noqa: F403 (the same tests, another database)
from tests.unit.api_files.test_archive_uploads import *  # noqa: F403

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("round_", range(5))
def test_two_admins_cannot_take_each_other_away_at_once(house: Any, round_: int) -> None:
    house.call("owner", "PUT", "/projects/vision/members/member", json={"role": "admin"})
    house.call("root", "PATCH", "/users/owner", json={"is_admin": True})
    statuses: list[int] = []
    start = threading.Barrier(4)

    def go(who: str, method: str, path: str, body: dict[str, Any] | None) -> None:
        start.wait()
        statuses.append(house.call(who, method, path, json=body).status_code)

    calls = [
        ("owner", "DELETE", "/projects/vision/members/member", None),
        ("member", "DELETE", "/projects/vision/members/owner", None),
        ("root", "PATCH", "/users/root", {"is_admin": False}),
        ("root", "PATCH", "/users/owner", {"is_admin": False}),
    ]
    threads = [threading.Thread(target=go, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with unit_of_work(house.sessions, read_only=True) as session:
        admins = session.scalars(
            select(Membership.user_id).where(Membership.role == "admin", Membership.project_id == "project-vision")
        )
        assert len(list(admins)) == 1
        assert len(list(session.scalars(select(User.id).where(User.is_admin)))) == 1
    assert all(status < 500 for status in statuses)
