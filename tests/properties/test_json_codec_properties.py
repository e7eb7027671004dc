"""What is written of a snapshot or a plan is read back exactly, whatever is in it."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.domain.sharing.policy import Policy, QueueOrder
from scheduler.planning import plan
from scheduler.planning.json_codec import from_json, plan_from_json, plan_to_json, to_json
from scheduler.planning.model import Plan, Snapshot
from tests.properties.planner_worlds import snapshots

POLICIES = st.sampled_from(
    [Policy(), Policy(order=QueueOrder.FIFO, time_slice_s=5.5), Policy(levels_gpu_s=(1.0,), rotation_s=60.0)]
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.tuples(inner)
        | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
PLAIN = {
    int: st.integers(0, 2**53),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=6),
    bool: st.booleans(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    Any: ANYTHING,
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Anything of this type."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.none() | values(next(one for one in args if one is not type(None)))
    if origin is tuple:
        if args[-1] is Ellipsis:
            return st.lists(values(args[0]), max_size=2).map(tuple)
        return st.tuples(*map(values, args))
    if origin is frozenset:
        return st.frozensets(values(args[0]), max_size=2)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(st.text("abc", max_size=3), values(args[1]), max_size=2)
    if hint is Policy:
        return POLICIES
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{field.name: values(hints[field.name]) for field in fields(hint)})
    return PLAIN[hint]


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None, max_examples=60)
@given(values(Snapshot))
def test_any_snapshot_comes_back_as_it_was(snapshot: Snapshot) -> None:
    assert from_json(Snapshot, through_json(to_json(snapshot))) == snapshot


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None, max_examples=60)
@given(values(Plan))
def test_any_plan_comes_back_as_it_was(made: Plan) -> None:
    assert plan_from_json(through_json(plan_to_json(made))) == made


@settings(deadline=None, max_examples=60)
@given(snapshots())
def test_what_was_read_back_is_planned_as_it_was(snapshot: Snapshot) -> None:
    again = from_json(Snapshot, through_json(to_json(snapshot)))
    assert plan(again) == plan_from_json(through_json(plan_to_json(plan(snapshot))))
