from __future__ import annotations

import math
import random
from typing import Any

import pytest

from api.protocols.mlflow.filters import in_order, parse_filter, parse_order
from core.domain.errors import InvalidRequest

KEYS = {"run_id", "run_name", "status", "start_time"}
RUN: dict[str, dict[str, Any]] = {
    "metrics": {"loss": 0.25, "val acc": 0.9, "nan": math.nan, "a/b.c": 1.0},
    "params": {"lr": "0.1", "model": "ResNet50", "odd": "it's 100%"},
    "tags": {"mlflow.user": "ann", "team-x": "y"},
    "attributes": {"run_id": "r1", "run_name": "digits", "status": "FINISHED", "start_time": 1000},
    "datasets": {"name": ["train", "test"]},
}


def look(kind: str, key: str) -> Any:
    return RUN[kind].get(key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "metrics.loss < 0.3",
        "metric.loss<0.3 and metrics.loss >= 0.25",
        "metrics.`val acc` = 0.9",
        'metrics."val acc" = 0.9',
        "metrics.a/b.c = 1",
        "metrics.loss != 1e-3",
        "params.lr = '0.1'",
        'params.lr = "0.1" AND parameters.model LIKE "Res%"',
        "params.model ILIKE 'resnet__'",
        "params.odd = 'it''s 100%'",
        "param.model != 'VGG'",
        "params.nothing IS NULL",
        "params.lr IS NOT NULL",
        "tags.mlflow.user = 'ann'",
        "tag.team-x = 'y'",
        "attributes.status = 'FINISHED'",
        "status IN ('FAILED', 'FINISHED')",
        "run_id NOT IN ('r2')",
        "`run name` = 'digits'",
        "attr.created > 999",
        "start_time <= 1000",
        "datasets.name = 'test'",
    ],
)
def test_it_holds(text: str) -> None:
    assert all(item.holds(look) for item in parse_filter(text, KEYS))


@pytest.mark.parametrize(
    "text",
    [
        "metrics.loss > 0.3",
        "metrics.nothing < 1",
        "metrics.nothing != 1",
        "metrics.nan < 1",
        "metrics.nan >= 1",
        "params.model LIKE 'res%'",
        "params.model LIKE 'ResNet'",
        "params.lr IS NULL",
        "status NOT IN ('FINISHED')",
        "datasets.name = 'none'",
        "params.lr = '0.1' AND metrics.loss = 7",
    ],
)
def test_it_does_not_hold(text: str) -> None:
    assert not all(item.holds(look) for item in parse_filter(text, KEYS))


@pytest.mark.parametrize(
    "text",
    [
        "loss < 1",
        "attributes.colour = 'red'",
        "things.a = 'b'",
        "metrics.loss",
        "metrics.loss <",
        "metrics.loss < 'a'",
        "metrics.loss LIKE '1%'",
        "params.lr = 0.1",
        "params.lr < '1'",
        "params.lr = 'a' params.lr = 'b'",
        "params.lr = 'a' OR params.lr = 'b'",
        "params.lr = 'a",
        "status IN 'a'",
        "status IN ('a'",
        "status IN (1)",
        "status IS 1",
        "metrics.loss < 1; drop table runs",
        "x" * 20_000,
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^filter"):
        parse_filter(text, KEYS)


def test_no_text_makes_it_fail_in_another_way() -> None:
    draw = random.Random(7)
    words = [
        "metrics.a",
        "params.`b c`",
        "'x'",
        '"y',
        "1.5",
        "-",
        "<",
        "=",
        "LIKE",
        "IN",
        "(",
        ")",
        ",",
        "AND",
        "IS",
        "NOT",
        "NULL",
        "\n",
        "\u2603",
        "``",
    ]
    for _ in range(2_000):
        text = " ".join(draw.choices(words, k=draw.randrange(12)))
        try:
            found = parse_filter(text, KEYS)
        except InvalidRequest:
            continue
        for item in found:
            item.holds(look)


def test_a_pattern_that_would_keep_a_back_tracking_engine_busy_does_not() -> None:
    (item,) = parse_filter(f"params.p LIKE '{'%a' * 50}b'", KEYS)
    assert not item.holds(lambda _kind, _key: "a" * 8_000)


def test_order_is_by_all_keys_and_what_lacks_one_comes_last() -> None:
    runs = [{"a": 1.0, "b": "x"}, {"a": 2.0, "b": "x"}, {"b": "y"}, {"a": math.nan, "b": "x"}]

    def look_of(run: dict[str, Any]) -> Any:
        return lambda _kind, key: run.get(key)

    ordered = in_order(runs, parse_order(["params.b DESC", "metrics.a"], KEYS), look_of)
    assert [run.get("a", "none") for run in ordered][:3] == ["none", 1.0, 2.0]
    assert math.isnan(ordered[3]["a"])
    last = in_order(runs, parse_order(["metrics.a DESC"], KEYS), look_of)
    assert [run.get("a") for run in last][:2] == [2.0, 1.0]
    assert "a" not in last[-1]


@pytest.mark.parametrize("text", ["", "metrics.a up", "metrics.a ASC DESC", "colour DESC", "<"])
def test_an_order_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^order_by"):
        parse_order([text], KEYS)
