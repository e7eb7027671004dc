"""NaN and infinity, which JSON cannot tell: sent, they would take settings away."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from trainmaster.errors import InvalidRequest


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_no_number_is_sent_that_would_arrive_as_null(client: Any, server: Any, number: float) -> None:
    for ask, path in (
        (lambda: client.update_quota("vision", weight=number), "weight"),
        (lambda: client.update_quota("vision", limits={"gpus": number}), "limit.gpus"),
        (lambda: client.update_quota("vision", users={"ann": {"cpu": number}}), "users.ann.cpu"),
        (lambda: client.update_quota("vision", user_weights={"ann": number}), "user_weights.ann"),
        (lambda: client.create_project("new", weight=number), "weight"),
        (lambda: client.update_project("vision", weight=number), "weight"),
        (lambda: client.update_policy({"time_slice": number}), "settings.time_slice"),
        (lambda: client.update_policy({"levels_gpu": [1.0, number]}), "settings.levels_gpu"),
        (lambda: client.begin_simulation(policy={"grace": number}), "policy.grace"),
        (lambda: client.complete_trial("search", 1, {"loss": number}), "result.loss"),
        (lambda: client.clone_study("search", changes={"budget": {"gpu_hours": number}}), "changes.budget"),
        (lambda: client.extend_study("search", gpu_hours=number), "gpu_hours"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            ask()
        assert [mistake.path for mistake in refused.value.mistakes] == [path]
    assert server.requests == []


@pytest.mark.parametrize("weight", ["nan", "inf", "0", "1e9"])
@pytest.mark.parametrize(
    "words", [("quota", "set", "vision"), ("projects", "create", "new"), ("projects", "update", "vision")]
)
def test_a_weight_that_is_none_is_refused_in_words(cli: Any, server: Any, words: tuple[str, ...], weight: str) -> None:
    refused = cli(*words, "--weight", weight)
    assert refused.exit_code != 0
    assert "must be a number from 0.001 to 1000; weight 2 gets twice the share of weight 1" in refused.stderr
    assert server.requests == []
