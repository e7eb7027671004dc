"""What ``predict`` takes: lists, arrays of NumPy, tensors, tables; and what it says of anything else."""

from __future__ import annotations

import json
from datetime import date
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trainmaster.errors import InvalidRequest, TrainmasterError


class Table:
    """As much of pandas' DataFrame as is used of it."""

    columns = ("a", "b")

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return [{"a": np.float64(1.5), "b": "x"}, {"a": 2.0, "b": "y"}]


@pytest.mark.parametrize(
    ("instances", "sent"),
    [
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([np.array([1.5, 2.0], dtype=np.float32), np.int64(3)], [[1.5, 2.0], 3]),
        ([{"x": np.int32(1), "y": (np.True_, None)}], [{"x": 1, "y": [True, None]}]),
        (({"x": 1}, {"x": 2}), [{"x": 1}, {"x": 2}]),
        (range(1, 3), [1, 2]),
        (SimpleNamespace(tolist=lambda: [[0.5]]), [[0.5]]),
        (Table(), [{"a": 1.5, "b": "x"}, {"a": 2.0, "b": "y"}]),
    ],
)
@pytest.mark.parametrize("method", ["predict", "predict_with_metadata"])
def test_arrays_and_tables_are_sent_as_json(server: Any, client: Any, method: str, instances: Any, sent: Any) -> None:
    server.on("POST", "/projects/default/endpoints/iris:predict", {"predictions": [7]})
    getattr(client, method)("iris", instances, parameters={"threshold": np.float32(0.5)})
    assert json.loads(server.requests[-1].content) == {"instances": sent, "parameters": {"threshold": 0.5}}


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("instances", "words"),
    [
        ([{"x": 1}, {"x": [0, date(2026, 11, 23)]}], r"instances\[1\]\['x'\]\[1\] is datetime.date, which JSON"),
        ([b"png"], r"instances\[0\] is bytes"),
        ([{(1, 2): 3}], r"a key of instances\[0\] is tuple"),
        ("setosa", "instances is str; give a list"),
        ({"x": 1}, "instances is dict; give a list"),
        (np.array(3.5), "instances is numpy.ndarray; give a list"),
        (CIRCLE, "instances cannot be written as JSON: Circular"),
    ],
)
def test_what_is_no_json_is_named(server: Any, client: Any, instances: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as reported:
        client.predict("iris", instances)
    assert isinstance(reported.value, TrainmasterError)
    assert not server.requests
