"""Quotas in user notation and in the planner's units.

``projects.quota`` stores ``{"limit": {"gpus": 16, "gpus/H100": 8, "cpu": 64, "memory": "512Gi", "jobs": 20,
"storage": "10Ti"}, "guaranteed": {...}, "user_limit": {...}, "users": {"ann": {...}}, "user_guaranteed":
{"ann": {...}}, "user_weights": {"ann": 2}}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal
from math import isfinite
from typing import Any, Final

from trainmaster.spec.quantity import format_bytes, parse_quantity

from core.domain.errors import InvalidRequest
from core.domain.sharing.gpus import normal_model

# User notation -> the planner's key.
JOBS: Final = "jobs"
CPU: Final = "cpu_milli"
MEMORY: Final = "memory_bytes"
GPUS: Final = "gpu_milli"
# Of the whole project alone, and no matter of the planner.
STORAGE: Final = "storage_bytes"
_PARTS: Final = ("limit", "guaranteed", "user_limit")
_USERS: Final = "users"
_OF_USERS: Final = "user_guaranteed"
_WEIGHTS: Final = "user_weights"
_MOST: Final = 2**60


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits on concurrently held resources. Keys: ``jobs``, ``cpu_milli``, ``memory_bytes``, ``gpu_milli``
    (thousandths of a GPU, all models together) and ``gpu_milli/<model>``; resources without a key are unlimited.

    ``guaranteed``: reclaimed for the project by preemption of borrowers. ``user_limit``: for each user of the project;
    ``user_limits``: overrides for some users. ``user_guaranteed``: reclaimed for users inside the project, from users
    above their own guarantee.
    """

    limit: Mapping[str, int] = field(default_factory=dict)
    guaranteed: Mapping[str, int] = field(default_factory=dict)
    user_limit: Mapping[str, int] = field(default_factory=dict)
    user_limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    user_guaranteed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """``user_weights``: share weights of some users of the project; the others have 1. ``storage_bytes``: the storage
    quota of the whole project; ``None``: unlimited.
    """

    quota: Quota = field(default_factory=Quota)
    user_weights: Mapping[str, float] = field(default_factory=dict)
    storage_bytes: int | None = None


def parse_quota(data: Mapping[str, Any], *, at: str = "quota") -> QuotaSettings:
    """``data`` in the planner's units.

    Args:
        at: prefix of field names in errors.

    Raises:
        InvalidRequest: an unknown part or resource, or an invalid amount; ``field`` names it.
    """
    known = (*_PARTS, _USERS, _OF_USERS, _WEIGHTS)
    for name in data:
        if name not in known:
            raise InvalidRequest(f"{at} has no part {name!r}; its parts are {', '.join(known)}.", field=f"{at}.{name}")
    limit, guaranteed, user_limit = (_amounts(data.get(name), f"{at}.{name}") for name in _PARTS)
    storage_bytes = limit.pop(STORAGE, None)
    _check_guarantee(guaranteed, limit, f"{at}.guaranteed")
    users, of_users = (
        {
            user: _amounts(amounts, f"{at}.{part}.{user}")
            for user, amounts in _mapping(data.get(part), f"{at}.{part}").items()
        }
        for part in (_USERS, _OF_USERS)
    )
    for part, parts in {"guaranteed": [guaranteed], "user_limit": [user_limit], _USERS: users.values(),
                        _OF_USERS: of_users.values()}.items():  # fmt: skip
        if any(STORAGE in amounts for amounts in parts):
            raise InvalidRequest(
                f"{at}.{part}: storage has a limit of the whole project alone, no guarantee and no limit of users.",
                field=f"{at}.{part}.{written_name(STORAGE)}",
            )
    for user, amounts in of_users.items():
        _check_guarantee(amounts, {**limit, **users.get(user, user_limit)}, f"{at}.{_OF_USERS}.{user}")
    return QuotaSettings(
        Quota(limit, guaranteed, user_limit, users, of_users),
        {
            user: _parse_weight(weight, field=f"{at}.{_WEIGHTS}.{user}")
            for user, weight in _mapping(data.get(_WEIGHTS), f"{at}.{_WEIGHTS}").items()
        },
        storage_bytes,
    )


def _check_guarantee(guaranteed: Mapping[str, int], limit: Mapping[str, int], at: str) -> None:
    for what, amount in guaranteed.items():
        if what == JOBS:
            raise InvalidRequest(
                "A number of jobs cannot be guaranteed: guarantee cpu, memory or gpus.", field=f"{at}.jobs"
            )
        if amount > limit.get(what, amount):
            name = written_name(what)
            raise InvalidRequest(
                f"{name}: {written(what, amount)} are guaranteed, and the limit is {written(what, limit[what])}; "
                "raise the limit, or guarantee less.",
                field=f"{at}.{name}",
            )


def _parse_weight(value: Any, *, field: str) -> float:
    """A share weight.

    Raises:
        InvalidRequest: not a number above 0.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not isfinite(value) or not 0.001 <= value <= 1_000_000:
        raise InvalidRequest(
            f"{field} is a number from 0.001 to 1000000; who has 2 gets twice as much as who has 1.", field=field
        )
    return float(value)


def check_amount(what: str, value: Any, *, field: str) -> int:
    """``value`` of ``what`` (``gpus``, ``gpus/H100``, ``cpu``, ``memory``, ``jobs``, ``storage``) in internal units.

    Raises:
        InvalidRequest: unknown resource, or invalid amount.
    """
    unit = _unit(what, field)
    try:
        amount = parse_quantity(value)
    except ValueError as wrong:
        raise InvalidRequest(f"{field}: {wrong}.", field=field) from wrong
    if unit == JOBS and amount != amount.to_integral_value():
        raise InvalidRequest(f"{field}: jobs are counted whole.", field=field)
    thousandths = unit == CPU or unit.startswith(GPUS)
    counted = int((amount * (1000 if thousandths else 1)).to_integral_value(rounding=ROUND_FLOOR))
    if amount > 0 and not counted:  # else it would be a limit of 0
        noun = {CPU: "a CPU is 0.001", MEMORY: "memory is 1Mi", STORAGE: "storage is 1Mi"}.get(unit, "a GPU is 0.001")
        raise InvalidRequest(f"{field}: {value} is too little; the smallest part of {noun}.", field=field)
    if counted > _MOST:
        raise InvalidRequest(f"{field}: {value} is more than any cluster has.", field=field)
    if unit in (MEMORY, STORAGE) and 0 < counted < 2**20:
        raise InvalidRequest(f"{field}: {value} is less than 1Mi; write a unit, like 512Gi.", field=field)
    return counted


def planner_key(what: str, *, field: str) -> str:
    """``gpus/NVIDIA H100`` is ``gpu_milli/h100``.

    Raises:
        InvalidRequest: unknown resource.
    """
    return _unit(what, field)


def written_name(key: str) -> str:
    """The planner's ``key`` in user notation: ``gpu_milli/h100`` is ``gpus/h100``."""
    first, _, model = key.partition("/")
    name = {CPU: "cpu", MEMORY: "memory", GPUS: "gpus", STORAGE: "storage"}.get(first, first)
    return f"{name}/{model}" if model else name


def written(key: str, amount: int) -> str:
    """``amount`` of the planner's ``key`` in user notation: ``2.5``, ``512Gi``."""
    if key in (MEMORY, STORAGE):
        return format_bytes(amount)
    if key == JOBS:
        return str(amount)
    return f"{Decimal(amount) / 1000:f}"


def keys_in(quota: Quota) -> Iterable[str]:
    """Every resource that ``quota`` names, once."""
    of_users = (*quota.user_limits.values(), *quota.user_guaranteed.values())
    parts = (quota.limit, quota.guaranteed, quota.user_limit, *of_users)
    return dict.fromkeys(key for part in parts for key in part)


def _amounts(data: Any, at: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for what, value in _mapping(data, at).items():
        key = _unit(what, f"{at}.{what}")
        if key in found:
            raise InvalidRequest(f"{at}: {what} is given twice, in two spellings.", field=f"{at}.{what}")
        found[key] = check_amount(what, value, field=f"{at}.{what}")
    return found


def _mapping(data: Any, at: str) -> Mapping[str, Any]:
    if data is None:
        return {}
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise InvalidRequest(f"{at} is an object of names and values.", field=at)
    return data


def _unit(what: str, field: str) -> str:
    plain = {"jobs": JOBS, "cpu": CPU, "memory": MEMORY, "gpus": GPUS, "storage": STORAGE}.get(what)
    if plain is not None:
        return plain
    first, slash, model = what.partition("/")
    if first == "gpus" and slash and normal_model(model):
        return f"{GPUS}/{normal_model(model)}"
    raise InvalidRequest(
        f"{field}: a quota is on jobs, cpu, memory, storage, gpus, or gpus/<model> such as gpus/H100; not on {what!r}.",
        field=field,
    )
