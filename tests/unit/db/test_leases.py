from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from core.db.engine import SessionFactory, unit_of_work
from core.db.leases import LeaseGrant, acquire, check, release
from core.domain.errors import StaleWrite

NOW = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
TTL = timedelta(seconds=15)


def take(sessions: SessionFactory, holder: str, *, after_s: float = 0, name: str = "tick") -> LeaseGrant | None:
    with unit_of_work(sessions) as session:
        return acquire(session, name, holder=holder, now=NOW + timedelta(seconds=after_s), ttl=TTL)


def fence(sessions: SessionFactory, lease: LeaseGrant) -> None:
    with unit_of_work(sessions) as session:
        check(session, lease)


def test_a_free_lease_is_taken_and_others_are_turned_away(sessions: SessionFactory) -> None:
    assert take(sessions, "a") == LeaseGrant("tick", "a", 1)
    assert take(sessions, "b", after_s=14.9) is None


def test_the_holder_gets_it_again_with_the_next_token(sessions: SessionFactory) -> None:
    first, second = take(sessions, "a"), take(sessions, "a", after_s=5)
    assert first is not None
    assert second == LeaseGrant("tick", "a", 2)
    with pytest.raises(StaleWrite):
        fence(sessions, first)


def test_an_expired_lease_is_taken_over_and_its_late_holder_writes_nothing(sessions: SessionFactory) -> None:
    late = take(sessions, "a")
    assert late is not None
    taken = take(sessions, "b", after_s=15)
    assert taken == LeaseGrant("tick", "b", 2)
    with pytest.raises(StaleWrite):
        fence(sessions, late)
    fence(sessions, taken)


def test_a_holder_that_was_late_but_not_replaced_may_still_write(sessions: SessionFactory) -> None:
    late = take(sessions, "a")
    assert late is not None
    fence(sessions, late)


def test_a_released_lease_is_free_at_once_and_its_tokens_go_on(sessions: SessionFactory) -> None:
    first = take(sessions, "a")
    assert first is not None
    with unit_of_work(sessions) as session:
        release(session, first, now=NOW)
    assert take(sessions, "b") == LeaseGrant("tick", "b", 2)


def test_releasing_what_somebody_else_took_is_harmless(sessions: SessionFactory) -> None:
    first = take(sessions, "a")
    second = take(sessions, "b", after_s=20)
    assert first is not None
    assert second is not None
    with unit_of_work(sessions) as session:
        release(session, first, now=NOW)
    fence(sessions, second)
    assert take(sessions, "c", after_s=21) is None


def test_leases_of_different_names_do_not_meet(sessions: SessionFactory) -> None:
    assert take(sessions, "a", name="attempt:1") is not None
    assert take(sessions, "b", name="attempt:2") is not None


def test_of_many_who_come_at_once_one_gets_a_new_lease(sessions: SessionFactory) -> None:
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda number: take(sessions, f"holder-{number}"), range(16)))
    assert len([lease for lease in got if lease is not None]) == 1


def test_of_many_who_come_at_once_one_takes_an_expired_lease_over(sessions: SessionFactory) -> None:
    take(sessions, "gone")
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda number: take(sessions, f"holder-{number}", after_s=60), range(16)))
    winners = [lease for lease in got if lease is not None]
    assert [lease.token for lease in winners] == [2]


def test_a_fenced_write_and_a_take_over_never_both_go_through(sessions: SessionFactory) -> None:
    """The fence locks the lease: the take-over waits for the write's end, and what follows it is stale."""
    old = take(sessions, "old")
    assert old is not None

    def write() -> bool:
        try:
            fence(sessions, old)
        except StaleWrite:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(write) for _ in range(4)]
        taken = pool.submit(take, sessions, "new", after_s=60)
        after = [pool.submit(write) for _ in range(4)]
    assert taken.result() == LeaseGrant("tick", "new", 2)
    assert {future.result() for future in (*writes, *after)} <= {True, False}
    assert write() is False
