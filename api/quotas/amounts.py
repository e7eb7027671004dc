"""Conversion of quota amounts between the planner's units, the stored form, and the REST views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.sizes import format_size

from core.db.tables import Node
from core.domain.errors import InvalidRequest
from core.domain.sharing.gpus import accepts, normal_model
from core.domain.sharing.quota import CPU, GPUS, JOBS, MEMORY, check_amount, planner_key, written, written_name
from core.domain.sharing.resources import Amounts

_THOUSANDTHS = (CPU, GPUS)


def shown(key: str, amount: float) -> float:
    """``amount`` of the planner's ``key`` in the units of REST views: CPUs, bytes, GPUs, jobs."""
    return amount / 1000 if key.partition("/")[0] in _THOUSANDTHS else amount


def in_words(key: str, amount: float) -> str:
    """``16 GPUs``, ``8 h100``, ``64 CPUs``, ``512 GiB``, ``20 jobs``."""
    first, _, model = key.partition("/")
    if first == MEMORY:
        return f"{format_size(int(amount))} of memory"
    number = shown(key, amount)
    noun = model or {CPU: "CPU", GPUS: "GPU", JOBS: "job"}[first]
    return f"{number:g} {noun}{'' if number == 1 or model else 's'}"


def capacity(session: Session) -> dict[str, int]:
    """The allocatable resources of all nodes together, by the planner's keys."""
    found: dict[str, int] = {CPU: 0, MEMORY: 0, GPUS: 0}
    for allocatable in session.scalars(select(Node.allocatable)):
        amounts = Amounts.from_json(allocatable)
        found[CPU] += amounts.cpu_milli
        found[MEMORY] += amounts.memory_bytes
        models = {**dict.fromkeys(amounts.shares, 0), **amounts.gpus}
        for model, count in models.items():
            milli = 1000 * (count + len(amounts.shares.get(model, ())))
            found[GPUS] += milli
            key = f"{GPUS}/{normal_model(model)}"
            found[key] = found.get(key, 0) + milli
    return found


def models_of(keys: Iterable[str]) -> list[str]:
    """The GPU models among the planner's keys."""
    return sorted(key.partition("/")[2] for key in keys if "/" in key)


def canonical_name(what: str, present: Iterable[str], *, field: str) -> str:
    """The stored name of the resource ``what``: a GPU model by the nodes' own name, if it matches one of theirs.

    Raises:
        InvalidRequest: there is no such resource, or several models of the nodes match.
    """
    key = planner_key(what, field=field)
    _, _, model = key.partition("/")
    if not model or model in present:
        return written_name(key)
    meant = [each for each in present if accepts(model, each)]
    if len(meant) > 1:
        raise InvalidRequest(
            f"{field}: {what} may be {' or '.join(f'gpus/{each}' for each in meant)}; name one of them.", field=field
        )
    return f"gpus/{meant[0]}" if meant else written_name(key)


def merged(
    before: Mapping[str, Any],
    changes: Mapping[str, Any],
    present: Iterable[str],
    *,
    at: str,
    wrong: list[InvalidRequest],
) -> dict[str, Any]:
    """``before`` with the changes, in canonical form; ``None`` removes. Invalid changes are appended to ``wrong``."""
    models = list(present)
    after = dict(before)
    for what, value in changes.items():
        field = f"{at}.{what}"
        try:
            name = canonical_name(what, models, field=field)
            if value is None:
                after.pop(name, None)
            else:
                after[name] = written(planner_key(name, field=field), check_amount(name, value, field=field))
        except InvalidRequest as mistake:
            wrong.append(mistake)
    return after
