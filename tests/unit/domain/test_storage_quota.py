"""Storage quotas: what is parsed, warned of and refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core.domain.errors import InvalidRequest, StorageQuotaExceeded
from core.domain.sharing.quota import parse_quota
from core.domain.sharing.storage import FULL_LEVEL, WARNING_LEVEL, StorageState, storage_limit

GIB = 2**30
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_planner_sees_nothing_of_the_storage_quota() -> None:
    settings = parse_quota({"limit": {"gpus": 2, "storage": "10Gi"}})
    assert settings.storage_bytes == 10 * GIB
    assert settings.quota.limit == {"gpu_milli": 2000}
    assert parse_quota({"limit": {"gpus": 2}}).storage_bytes is None


@pytest.mark.parametrize(
    "quota",
    [
        {"guaranteed": {"storage": "1Gi"}},
        {"user_limit": {"storage": "1Gi"}},
        {"users": {"ann": {"storage": "1Gi"}}},
        {"user_guaranteed": {"ann": {"storage": "1Gi"}}},
        {"limit": {"storage": "500"}},  # bytes, where a unit was forgotten
    ],
)
def test_storage_has_one_limit_of_the_whole_project(quota: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="storage"):
        parse_quota(quota)


@pytest.mark.parametrize(
    ("stored", "limit"),
    [(None, None), ({}, None), ({"limit": {"gpus": 1}}, None), ({"limit": {"storage": "1Gi"}}, GIB),
     ({"limit": {"storage": "what?"}}, None), ({"limit": {"storage": "0"}}, 0)],
)  # fmt: skip
def test_the_limit_is_read_alone_from_the_stored_quota(stored: dict[str, object] | None, limit: int | None) -> None:
    assert storage_limit(stored) == limit


@pytest.mark.parametrize(
    ("used", "limit", "before", "level"),
    [
        (10**18, None, 0, 0),
        (79, 100, 0, 0),
        (80, 100, 0, WARNING_LEVEL),
        (100, 100, 80, FULL_LEVEL),
        (96, 100, 100, FULL_LEVEL),  # about the line it is not announced again and again
        (94, 100, 100, WARNING_LEVEL),
        (74, 100, 80, 0),
        (10, None, 100, 0),
        (0, 0, 0, FULL_LEVEL),
    ],
)
def test_levels(used: int, limit: int | None, before: int, level: int) -> None:
    assert StorageState("vision", used, limit).level(before) == level


def test_a_refusal_names_project_usage_quota_and_what_to_do() -> None:
    with pytest.raises(StorageQuotaExceeded) as refused:
        StorageState("vision", 11 * GIB, 10 * GIB).demand_room()
    assert refused.value.sentence.startswith(
        "Project vision uses 11.0 GiB of its storage quota of 10.0 GiB (110 %). Delete jobs with their files"
    )
    with pytest.raises(StorageQuotaExceeded, match=r"2\.0 GiB more do not fit"):
        StorageState("vision", 9 * GIB, 10 * GIB).demand_room(2 * GIB)
    StorageState("vision", 9 * GIB, 10 * GIB).demand_room(GIB)
    StorageState("vision", 9 * GIB).demand_room(2**60)


def test_warnings_begin_at_80_percent() -> None:
    assert StorageState("vision", 79, 100).warnings() == []
    (near,) = StorageState("vision", 85, 100).warnings()
    assert "(85 %)" in near
    assert "At 100 %" in near
    (full,) = StorageState("vision", 101, 100).warnings()
    assert "(101 %)" in full
    assert "running jobs continue" in full


def test_a_measurement_takes_a_tenth_of_the_time_at_most() -> None:
    state = StorageState("vision", 1, 100)
    assert state.next_measurement(NOW, is_active=True, duration_s=3600) == NOW + timedelta(hours=10)
    idle, active = (state.next_measurement(NOW, is_active=active, duration_s=1) for active in (False, True))
    near = StorageState("vision", 90, 100).next_measurement(NOW, is_active=True, duration_s=1)
    full = StorageState("vision", 100, 100).next_measurement(NOW, is_active=False, duration_s=1)
    assert idle > active > near > full > NOW
