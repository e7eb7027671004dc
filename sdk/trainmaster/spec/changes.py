"""Changes to a spec, as a merge patch: for clones, and for a command line that overrides a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.spec.shorthand import COUNTS, RESOURCES, SHORTHAND_NAMES, is_defaulted


def with_changes(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``spec`` patched with ``changes``, both in the form users write; :func:`parse_spec` validates the result.

    A JSON merge patch (RFC 7396): null removes, mappings merge, everything else replaces. Shorthands apply even to a
    canonical spec, which holds only roles: ``workers: 4`` replaces ``roles.worker.replicas``, and ``gpus: 2`` replaces
    the GPUs of every role that trains. Neither argument is modified.
    """
    merged = _merge_patch(spec, changes)
    roles = merged.get("roles")
    if not isinstance(roles, dict):
        return merged
    for key, value in changes.items():
        if key not in SHORTHAND_NAMES or value is None:
            continue
        if key in COUNTS:
            _drop_count(roles, COUNTS[key], is_none=value is False or value == 0)
        else:
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


def _drop_count(roles: dict[str, Any], role: str, *, is_none: bool) -> None:
    entry = roles.get(role)
    if is_none or not isinstance(entry, dict):
        roles.pop(role, None)
    else:
        entry.pop("replicas", None)


def _drop_default(roles: dict[str, Any], key: str) -> None:
    for name, entry in roles.items():
        if not isinstance(entry, dict) or not is_defaulted(name, key):
            continue
        owner = entry.get("resources") if key in RESOURCES else entry
        if isinstance(owner, dict):
            owner.pop(key, None)
