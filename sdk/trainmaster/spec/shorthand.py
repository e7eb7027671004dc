"""Shorthands at the top of a spec (``workers: 2``, ``gpus: 1``), their expansion into roles,
and changes (merge patches) that apply to both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from trainmaster.spec.enums import DMLC_SCHEDULER_ROLE, MAX_REPLICAS, NON_DECIDER_ROLES, Contract
from trainmaster.spec.errors import FieldError, Path, Violation, join_path
from trainmaster.spec.fields import (
    ByteQuantity,
    CpuQuantity,
    GpuModels,
    Gpus,
    count,
    integer,
    read_replica_range,
    replica_range,
)

MAX_PROCESSES: Final = 256

# The bounds precede the parser: otherwise they are missing in the schema of an optional field.
Processes = Annotated[int, Field(ge=1, le=MAX_PROCESSES), integer]
_Count = Annotated[int, Field(ge=0, le=MAX_REPLICAS), count(MAX_REPLICAS)]
_Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS), integer]
_Workers = Annotated[int | tuple[int, int], replica_range(MAX_REPLICAS)]


class Shorthands(BaseModel):
    """Top-level alternatives to ``roles``; the canonical form has none of them."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    workers: _Workers | None = Field(
        default=None,
        description="Replicas of the role worker. A range makes the gang elastic: it runs with as many as there is "
        "capacity for.",
        examples=[2, {"min": 2, "max": 4}],
    )
    ps: _Replicas | None = Field(default=None, description="Replicas of the role ps.")
    chief: Annotated[int, Field(ge=0, le=1), count(1)] | None = Field(
        default=None, description="true: one replica of the role chief."
    )
    evaluator: _Count | None = Field(default=None, description="true or a number: replicas of the role evaluator.")
    evaluators: _Count | None = Field(default=None, description="The same as evaluator.")
    gpus: Gpus | None = Field(
        default=None,
        description="GPUs per replica of chief, worker and custom roles, or a fraction of a GPU.",
        examples=[1, 0.5],
    )
    gpu_type: GpuModels | None = Field(default=None, description="Accepted GPU models of all roles with GPUs.")
    cpu: CpuQuantity | None = Field(default=None, description="CPUs per replica of every role.")
    memory: ByteQuantity | None = Field(default=None, description="Memory per replica of every role.")
    shm: ByteQuantity | None = Field(default=None, description="Size of /dev/shm per replica of every role.")
    processes_per_replica: Processes | None = Field(
        default=None, description="Processes per replica of chief, worker and custom roles."
    )


# Shorthand -> the role whose replicas it gives.
_COUNTS: Final = {
    "chief": "chief",
    "workers": "worker",
    "ps": "ps",
    "evaluator": "evaluator",
    "evaluators": "evaluator",
}
_RESOURCES: Final = ("gpus", "gpu_type", "cpu", "memory", "shm")
SHORTHAND_NAMES: Final = frozenset(Shorthands.model_fields)


@dataclass
class Expanded:
    """``data`` has only canonical fields, not yet validated.

    ``origins``: canonical path -> path in the user's document.
    """

    data: dict[str, Any]
    has_roles: bool = True  # whether the user wrote `roles`
    origins: dict[Path, Path] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)


def expand_keywords(data: dict[str, Any]) -> dict[str, Any]:
    """``data`` for a ``JobSpec`` without shorthands; the same object if it has none, like every stored spec.

    Raises:
        ValueError: shorthands contradict the roles or each other, or pydantic's error for an invalid value.
    """
    keywords = {key: value for key, value in data.items() if key in SHORTHAND_NAMES and value is not None}
    if not keywords and data.get("roles") is not None:
        return data
    written = {key: value for key, value in data.items() if key not in SHORTHAND_NAMES}
    roles = written.pop("roles", None)
    if isinstance(roles, Mapping):
        # Unset fields of role models that a program passes may be set by shorthands.
        written["roles"] = {
            name: role.model_dump(mode="json", exclude_unset=True) if isinstance(role, BaseModel) else role
            for name, role in roles.items()
        }
    elif roles is not None:
        written["roles"] = roles
    contract = written.get("contract")
    if isinstance(contract, Contract):
        written["contract"] = contract.value
    expanded = expand(written, Shorthands.model_validate(keywords))
    if expanded.violations:
        raise ValueError(
            "; ".join(f"{join_path(violation.path)} {violation.message}" for violation in expanded.violations)
        )
    return expanded.data


def _is_defaulted(role: str, key: str) -> bool:
    """Whether the shorthand ``key`` (not a count) applies to ``role``."""
    return role not in NON_DECIDER_ROLES or key not in ("gpus", "gpu_type", "processes_per_replica")


def roles_touched_by(shorthands: Iterable[Any], roles: Any) -> list[Path]:
    """The canonical paths that stay unfilled because these top-level fields are invalid."""
    paths: list[Path] = []
    for key in shorthands:
        if key in _COUNTS:
            paths.append(("roles", _COUNTS[key]))
        elif key in _RESOURCES and isinstance(roles, dict):
            paths += [("roles", name, "resources", key) for name in roles]
    return paths


def expand(written: Mapping[str, Any], short: Shorthands) -> Expanded:
    """``written`` (plain data without shorthands) with ``short`` expanded into its roles."""
    expanded = Expanded(dict(written), has_roles="roles" in written)
    roles = written.get("roles")
    if roles is not None and not isinstance(roles, dict):
        return expanded  # validation by the model reports the error
    expanded.data["roles"] = {name: _role(name, entry, expanded) for name, entry in (roles or {}).items()}
    _counts(expanded, short)
    roles = expanded.data["roles"]
    if not roles:
        roles["worker"] = {}
    _add_scheduler(expanded)
    _count_servers(expanded)
    for name, role in roles.items():
        if isinstance(role, dict):
            _defaults(name, role, expanded, short)
    if short.gpu_type and not any(_has_gpus(role) for role in roles.values()):
        expanded.violations.append(
            Violation(
                ("gpu_type",),
                "names a GPU model, but no role has GPUs",
                "add `gpus: 1`, or remove it",
                (("gpus",),),
            )
        )
    return expanded


def _has_gpus(role: Any) -> bool:
    """Whether the role has GPUs, or an invalid value for them."""
    if not isinstance(role, dict):
        return True
    resources = role.get("resources")
    return bool(resources.get("gpus")) if isinstance(resources, dict) else resources is not None


def _role(name: str, entry: Any, expanded: Expanded) -> Any:
    """A role as a mapping: a number means its replicas, an empty value one replica."""
    if entry is None or entry is True:
        return {}
    if isinstance(entry, int | float) and not isinstance(entry, bool):
        expanded.origins["roles", name, "replicas"] = ("roles", name)
        return {"replicas": entry}
    if not isinstance(entry, dict):
        return entry
    role = dict(entry)
    if isinstance(role.get("replicas"), dict):
        _span(name, role, expanded)
    return role


def _span(name: str, role: dict[str, Any], expanded: Expanded) -> None:
    """``replicas: {min: 2, max: 4}`` is short for ``replicas: 4`` and ``min_replicas: 2``."""
    where: Path = ("roles", name, "replicas")
    written = role.pop("replicas")
    try:
        least, most = read_replica_range(written)
    except FieldError as error:
        expanded.violations.append(Violation(where, error.message, error.hint))
        return
    if role.get("min_replicas") not in (None, least):
        expanded.violations.append(
            Violation(where, f"says min {least}, but min_replicas says {role['min_replicas']}", "remove one of them")
        )
    role["replicas"], role["min_replicas"] = most, least
    expanded.origins["roles", name, "min_replicas"] = where


def _counts(expanded: Expanded, short: Shorthands) -> None:
    roles: dict[str, Any] = expanded.data["roles"]
    counted_by: dict[str, str] = {}  # role -> shorthand
    for key, role_name in _COUNTS.items():
        count, least = getattr(short, key), None
        if isinstance(count, tuple):
            least, count = count
        if count is None:
            continue
        if role_name in counted_by:
            if count != getattr(short, counted_by[role_name]):
                _contradiction(expanded, key, f"says {count}, but {counted_by[role_name]} says otherwise")
            continue
        counted_by[role_name] = key
        role = roles.get(role_name)
        if role is None:
            if count:
                roles[role_name] = {"replicas": count}
                expanded.origins["roles", role_name] = (key,)
                expanded.origins["roles", role_name, "replicas"] = (key,)
                _count_least(role_name, roles[role_name], key, least, expanded)
            continue
        if not isinstance(role, dict):
            continue
        _count_least(role_name, role, key, least, expanded)
        replicas = role.get("replicas")
        if replicas is None and count:
            role["replicas"] = count
            expanded.origins["roles", role_name, "replicas"] = (key,)
        elif count == 0 or (isinstance(replicas, int | float) and replicas != count):
            where = expanded.origins.get(("roles", role_name, "replicas"), ("roles", role_name, "replicas"))
            existing = replicas if replicas is not None else 1
            _contradiction(expanded, key, f"says {count}, but {join_path(where)} says {existing}")


def _count_least(name: str, role: dict[str, Any], key: str, least: int | None, expanded: Expanded) -> None:
    """Apply the ``min`` of a range written at the top."""
    if least is None:
        return
    stated = role.get("min_replicas")
    if stated is None:
        role["min_replicas"] = least
        expanded.origins["roles", name, "min_replicas"] = (key,)
    elif stated != least:
        _contradiction(expanded, key, f"says min {least}, but roles.{name}.min_replicas says {stated}")


def _contradiction(expanded: Expanded, key: str, message: str) -> None:
    expanded.violations.append(Violation((key,), message, "remove one of them"))


def _add_scheduler(expanded: Expanded) -> None:
    """Add the ps-lite scheduler, through which ps-lite programs find each other; it runs the same command."""
    roles = expanded.data["roles"]
    if expanded.data.get("contract") == Contract.MXNET.value and DMLC_SCHEDULER_ROLE not in roles:
        roles[DMLC_SCHEDULER_ROLE] = {}
        expanded.origins["roles", DMLC_SCHEDULER_ROLE] = ("contract",)


def _count_servers(expanded: Expanded) -> None:
    """Default number of ps for contract uai: one per worker, including the chief."""
    roles = expanded.data["roles"]
    servers = roles.get("ps")
    if expanded.data.get("contract") != Contract.UAI.value or not isinstance(servers, dict):
        return
    trainers = [roles[name] for name in ("chief", "worker") if name in roles]
    stated = [role.get("replicas") or 1 if isinstance(role, dict) else None for role in trainers]
    counts = [count for count in stated if isinstance(count, int)]
    if servers.get("replicas") is None and counts and len(counts) == len(stated):
        servers["replicas"] = sum(counts)
        expanded.origins["roles", "ps", "replicas"] = ("contract",)


def _defaults(name: str, role: dict[str, Any], expanded: Expanded, short: Shorthands) -> None:
    resources = role.get("resources")
    if resources is None:
        resources = {}
    if isinstance(resources, dict):
        resources = dict(resources)
        for key in _RESOURCES:
            default = getattr(short, key)
            if default is None or resources.get(key) is not None:
                continue
            # Shorthand gpus does not apply to a ps; a ps with GPUs in its own entry still gets the shorthand gpu_type.
            if key == "gpus" and not _is_defaulted(name, key):
                continue
            if key == "gpu_type" and not resources.get("gpus"):
                continue
            resources[key] = list(default) if isinstance(default, tuple) else default
            expanded.origins["roles", name, "resources", key] = (key,)
        if resources:
            role["resources"] = resources
    processes = role.get("processes_per_replica")
    if processes is None and _is_defaulted(name, "processes_per_replica") and short.processes_per_replica is not None:
        role["processes_per_replica"] = short.processes_per_replica
        expanded.origins["roles", name, "processes_per_replica"] = ("processes_per_replica",)
    elif processes is None and name not in NON_DECIDER_ROLES and expanded.data.get("contract") == Contract.UAI.value:
        # A UAI program is one process per node that uses all of the node's GPUs.
        role["processes_per_replica"] = 1


# --- changes to a spec: for clones, and for a command line that overrides a file ------------------------------------


def with_changes(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``spec`` patched with ``changes``, both in the form users write; :func:`parse_spec` validates the result.

    A JSON merge patch (RFC 7396): null removes, mappings merge, everything else replaces. Shorthands apply even to a
    canonical spec, which holds only roles: ``workers: 4`` replaces ``roles.worker.replicas``, and ``gpus: 2`` replaces
    the GPUs of every role that trains; ``ps: null`` removes the role, and ``cpu: null`` the CPUs of every role. Neither
    argument is modified.
    """
    merged = _merge_patch(spec, changes)
    roles = merged.get("roles")
    if not isinstance(roles, dict):
        return merged
    for key, value in changes.items():
        if key in _COUNTS:
            _drop_count(roles, _COUNTS[key], value)
        elif key in SHORTHAND_NAMES:
            _drop_default(roles, key)
    return merged


def _merge_patch(target: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    # Copies every mapping on the path: the caller removes fields from them.
    merged = {key: _merge_patch(item, {}) if isinstance(item, Mapping) else item for key, item in target.items()}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = _merge_patch(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def _drop_count(roles: dict[str, Any], role: str, count: Any) -> None:
    entry = roles.get(role)
    # A job has at least one role: the last one loses its numbers, so that it has one replica.
    is_last = count is None and len(roles) == 1
    if not isinstance(entry, dict) or (not count and not is_last):
        roles.pop(role, None)
        return
    entry.pop("replicas", None)
    if is_last:
        entry.pop("min_replicas", None)


def _drop_default(roles: dict[str, Any], key: str) -> None:
    for name, entry in roles.items():
        if not isinstance(entry, dict) or not _is_defaulted(name, key):
            continue
        owner = entry.get("resources") if key in _RESOURCES else entry
        if isinstance(owner, dict):
            owner.pop(key, None)
