"""Policy, accounts and reservations of a scenario, written as by an administrator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Final

from trainmaster.spec.quantity import parse_bytes, parse_cpu_milli, parse_duration_s

from core.domain.ids import NodeId
from core.domain.sharing.policy import Defragment, Policy, QueueOrder
from scheduler.planning.model import Account, Booking, Quota
from scheduler.simulator.errors import ScenarioError, check_keys

_POLICY_FIELDS: Final = {field.name: field for field in fields(Policy)}
_ACCOUNT_KEYS: Final = (
    "weight",
    "usage",
    "user_usage",
    "user_weights",
    "limit",
    "guaranteed",
    "user_limit",
    "user_limits",
    "user_guaranteed",
)
_BOOKING_KEYS: Final = ("name", "project", "nodes", "from", "to")


def read_policy(given: Any) -> Policy:
    """``{order: shortest-first, time_slice_s: 10m, ...}``: fields of :class:`Policy` that differ from the default.

    Raises:
        ScenarioError: it names the field.
    """
    if not isinstance(given, Mapping):
        raise ScenarioError("policy: is a mapping such as {order: shortest-first, time_slice_s: 10m}")
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _POLICY_FIELDS:
            raise ScenarioError(f"policy: {name!r} is not known; there are {', '.join(sorted(_POLICY_FIELDS))}")
        values[name] = _setting(str(name), value)
    try:
        return Policy(**values)
    except ValueError as error:
        raise ScenarioError(f"policy.{error}") from error


def _setting(name: str, value: Any) -> Any:
    where = f"policy.{name}"
    try:
        if name == "order":
            return QueueOrder(value)
        if name == "defragment":
            return Defragment("off" if value is False else value)
        if name == "levels_gpu_s":
            return tuple(parse_duration_s(end) for end in value)
        if name.endswith("_s"):
            return None if value is None else parse_duration_s(value)
    except (ValueError, TypeError) as error:
        raise ScenarioError(f"{where}: {error}") from error
    if isinstance(_POLICY_FIELDS[name].default, bool) != isinstance(value, bool) or not isinstance(
        value, (bool, int, float)
    ):
        raise ScenarioError(f"{where}: {value!r} is not {'true or false' if name != 'usage_weight' else 'a number'}")
    return value


def read_accounts(given: Any) -> tuple[Account, ...]:
    """``{vision: {weight: 2, limit: {gpus: 16}, guaranteed: {gpus/H100: 8}, user_limit: {jobs: 4}}}``."""
    if not isinstance(given, Mapping):
        raise ScenarioError("accounts: is a mapping such as {vision: {weight: 2, limit: {gpus: 16}}}")
    accounts: list[Account] = []
    for project, settings in given.items():
        where = f"accounts.{project}"
        if not isinstance(settings, Mapping):
            raise ScenarioError(f"{where}: is a mapping such as {{weight: 2}}")
        check_keys(settings, _ACCOUNT_KEYS, where)
        weight = _number(settings.get("weight", 1), f"{where}.weight")
        if weight <= 0:
            raise ScenarioError(f"{where}.weight: is more than 0")
        limits, guarantees = settings.get("user_limits", {}), settings.get("user_guaranteed", {})
        accounts.append(
            Account(
                project=str(project),
                weight=weight,
                quota=Quota(
                    limit=_amounts(settings.get("limit", {}), f"{where}.limit"),
                    guaranteed=_amounts(settings.get("guaranteed", {}), f"{where}.guaranteed"),
                    user_limit=_amounts(settings.get("user_limit", {}), f"{where}.user_limit"),
                    user_limits={
                        str(user): _amounts(amounts, f"{where}.user_limits.{user}") for user, amounts in limits.items()
                    },
                    user_guaranteed={
                        str(user): _amounts(amounts, f"{where}.user_guaranteed.{user}")
                        for user, amounts in guarantees.items()
                    },
                ),
                usage=_number(settings.get("usage", 0), f"{where}.usage"),
                user_usage={
                    str(user): _number(part, f"{where}.user_usage")
                    for user, part in settings.get("user_usage", {}).items()
                },
                user_weights={
                    str(user): _number(part, f"{where}.user_weights")
                    for user, part in settings.get("user_weights", {}).items()
                },
            )
        )
    return tuple(accounts)


def _amounts(given: Any, where: str) -> dict[str, int]:
    if not isinstance(given, Mapping):
        raise ScenarioError(f"{where}: is a mapping such as {{gpus: 16, jobs: 4}}")
    amounts: dict[str, int] = {}
    for key, value in given.items():
        try:
            if key == "cpu":
                amounts["cpu_milli"] = parse_cpu_milli(value)
            elif key == "memory":
                amounts["memory_bytes"] = parse_bytes(value)
            elif key == "jobs":
                amounts["jobs"] = int(value)
            elif key == "gpus" or str(key).startswith("gpus/"):
                amounts["gpu_milli" + str(key)[4:]] = round(1000 * float(value))
            else:
                raise ScenarioError(f"{where}: {key!r} is not known; there are jobs, cpu, memory, gpus, gpus/<model>")
        except (ValueError, TypeError) as error:
            raise ScenarioError(f"{where}.{key}: {error}") from error
    return amounts


def read_bookings(given: Any, start: datetime, nodes: frozenset[str]) -> tuple[Booking, ...]:
    """``[{name: demo, project: vision, nodes: [gpu-1], from: 1h, to: 3h}]``, relative to the simulation's start."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ScenarioError("bookings: is a list such as [{project: vision, nodes: [gpu-1], from: 1h, to: 3h}]")
    bookings: list[Booking] = []
    for number, settings in enumerate(given):
        where = f"bookings[{number}]"
        if not isinstance(settings, Mapping) or not {"project", "nodes", "from", "to"} <= settings.keys():
            raise ScenarioError(f"{where}: needs project, nodes, from and to")
        check_keys(settings, _BOOKING_KEYS, where)
        unknown = sorted(set(map(str, settings["nodes"])) - nodes)
        if unknown:
            raise ScenarioError(f"{where}.nodes: there is no node {', '.join(unknown)}")
        try:
            begins_s, ends_s = parse_duration_s(settings["from"]), parse_duration_s(settings["to"])
        except ValueError as error:
            raise ScenarioError(f"{where}: {error}") from error
        if ends_s <= begins_s:
            raise ScenarioError(f"{where}.to: is later than from")
        bookings.append(
            Booking(
                id=f"booking-{number}",
                name=str(settings.get("name", f"booking-{number}")),
                project=str(settings["project"]),
                nodes=frozenset(NodeId(str(node)) for node in settings["nodes"]),
                begins_at=start + timedelta(seconds=begins_s),
                ends_at=start + timedelta(seconds=ends_s),
            )
        )
    return tuple(bookings)


def _number(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise ScenarioError(f"{where}: {given!r} is not a number")
    return float(given)
