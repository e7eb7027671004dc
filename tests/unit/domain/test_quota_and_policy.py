"""What administrators write about quotas and the policy, and what is said of what makes no sense."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.domain.errors import InvalidRequest
from core.domain.sharing.policy import Defragment, Policy, QueueOrder, parse_policy
from core.domain.sharing.quota import parse_quota


def test_a_quota_is_counted_in_the_planners_units() -> None:
    settings = parse_quota(
        {
            "limit": {"gpus": 16, "gpus/NVIDIA H100": 8, "cpu": "1500m", "memory": "512Gi", "jobs": 20},
            "guaranteed": {"gpus": 0.5},
            "user_limit": {"jobs": 2},
            "users": {"ann": {"gpus": 4}},
            "user_guaranteed": {"ann": {"gpus/H100": 2}},
            "user_weights": {"ann": 2},
        }
    )
    assert settings.quota.limit == {
        "gpu_milli": 16_000,
        "gpu_milli/h100": 8_000,
        "cpu_milli": 1_500,
        "memory_bytes": 512 * 2**30,
        "jobs": 20,
    }
    assert settings.quota.guaranteed == {"gpu_milli": 500}
    assert settings.quota.user_limit == {"jobs": 2}
    assert settings.quota.user_limits == {"ann": {"gpu_milli": 4_000}}
    assert settings.quota.user_guaranteed == {"ann": {"gpu_milli/h100": 2_000}}
    assert settings.user_weights == {"ann": 2.0}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"limits": {}}, "quota.limits"),
        ({"limit": {"gpu": 1}}, "quota.limit.gpu"),
        ({"limit": {"gpus": "many"}}, "quota.limit.gpus"),
        ({"limit": {"gpus": -1}}, "quota.limit.gpus"),
        ({"limit": {"jobs": 1.5}}, "quota.limit.jobs"),
        ({"limit": {"memory": 16}}, "quota.limit.memory"),
        ({"limit": {"gpus/H100": 1, "gpus/nvidia-h100": 1}}, "quota.limit.gpus/nvidia-h100"),
        ({"limit": {"gpus/": 1}}, "quota.limit.gpus/"),
        ({"limit": [1]}, "quota.limit"),
        ({"guaranteed": {"gpus": 4}, "limit": {"gpus": 2}}, "quota.guaranteed.gpus"),
        ({"guaranteed": {"jobs": 4}}, "quota.guaranteed.jobs"),
        ({"users": {"ann": {"tpus": 1}}}, "quota.users.ann.tpus"),
        ({"user_guaranteed": {"ann": {"jobs": 1}}}, "quota.user_guaranteed.ann.jobs"),
        ({"user_guaranteed": {"ann": {"gpus": 4}}, "users": {"ann": {"gpus": 3}}}, "quota.user_guaranteed.ann.gpus"),
        ({"user_guaranteed": {"ann": {"gpus": 4}}, "user_limit": {"gpus": 3}}, "quota.user_guaranteed.ann.gpus"),
        ({"user_weights": {"ann": 0}}, "quota.user_weights.ann"),
        ({"user_weights": {"ann": True}}, "quota.user_weights.ann"),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused_with_the_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as reported:
        parse_quota(wrong)
    assert reported.value.field == field


def test_a_policy_comes_back_as_it_was_written() -> None:
    policy = Policy(
        order=QueueOrder.FIFO, time_slice_s=600.0, rotation_s=1800.0, levels_gpu_s=(1.0, 2.0), defragment=Defragment.OFF
    )
    assert parse_policy(policy.to_json()) == policy
    assert parse_policy({"grace_s": 5}, base=policy).order is QueueOrder.FIFO
    assert parse_policy({}) == Policy()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"orders": "fifo"}, "orders"),
        ({"order": "random"}, "order"),
        ({"is_fair": "yes"}, "is_fair"),
        ({"usage_weight": 2}, "usage_weight"),
        ({"usage_half_life_s": 0}, "usage_half_life_s"),
        ({"grace_s": 1e9}, "grace_s"),
        ({"grace_s": float("nan")}, "grace_s"),
        ({"levels_gpu_s": [3, 2]}, "levels_gpu_s"),
        ({"levels_gpu_s": []}, "levels_gpu_s"),
        ({"time_slice_s": -1}, "time_slice_s"),
        ({"rotation_s": 0.5}, "rotation_s"),
        ({"rotation_s": "off"}, "rotation_s"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_with_the_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as reported:
        parse_policy(wrong)
    assert reported.value.field == field


@given(st.dictionaries(st.text(max_size=12), st.recursive(st.none() | st.integers() | st.text(), st.lists), max_size=3))
def test_nothing_that_is_sent_is_met_by_anything_but_words(data: dict[str, Any]) -> None:
    for parse in (parse_quota, parse_policy):
        with suppress(InvalidRequest):
            parse(data)
