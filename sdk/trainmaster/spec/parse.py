"""Parses what users write into the canonical :class:`~trainmaster.spec.model.JobSpec`, or reports all mistakes at once.

Steps: text → plain data (:mod:`document`, :mod:`plain_data`) → shorthands become roles (:mod:`shorthand`) → fields
(:mod:`fields`, :mod:`model`) → rules between fields (:mod:`rules`). Every step runs: an invalid value is recorded and
removed, and mistakes that only follow from an invalid value are not reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from trainmaster.spec.document import read_document
from trainmaster.spec.error_messages import explain_error, is_about_key, location_of
from trainmaster.spec.errors import Path, SpecError, SpecMistake, join_path
from trainmaster.spec.fields import kind_of
from trainmaster.spec.model import JobSpec
from trainmaster.spec.plain_data import plain_copy
from trainmaster.spec.quantity import as_text
from trainmaster.spec.rules import violations
from trainmaster.spec.schema import spec_json_schema
from trainmaster.spec.shorthand import SHORTHAND_NAMES, Expanded, Shorthands, expand, roles_touched_by

__all__ = ["SpecError", "SpecMistake", "parse_spec", "parse_spec_text", "read_spec_text", "spec_json_schema"]

_MAX_MISTAKES: Final = 100
# Each round removes the values found invalid; a removal uncovers further mistakes at most a few levels deep.
_MAX_ROUNDS: Final = 10
# Mappings with keys of the user's choice.
_FREE_KEYS: Final = frozenset({"env", "labels", "node_selector"})
# Prefix of ignored top-level fields, which hold YAML anchors, as in Compose files.
_EXTENSION: Final = "x-"
_ModelT = TypeVar("_ModelT", bound=BaseModel)


def parse_spec(raw: Mapping[str, Any]) -> JobSpec:
    """The canonical spec of ``raw``, which may have shorthands; idempotent.

    Raises:
        SpecError: with all mistakes; for any ``raw``, no other exception is raised.
    """
    return _Parsing().run(raw)


def parse_spec_text(text: str | bytes) -> JobSpec:
    """Like :func:`parse_spec`, from YAML or JSON text. Raises :class:`SpecError`."""
    return parse_spec(read_spec_text(text))


def read_spec_text(text: str | bytes) -> dict[str, Any]:
    """The fields in ``text`` (YAML or JSON) as written, not validated: to apply changes, or to send them.

    The result can be dumped as JSON: numbers in ``env``, ``args`` and similar fields are text as written (``1.10``).

    Raises:
        SpecError: not YAML, or not a mapping of fields.
    """
    data = read_document(text)
    if not isinstance(data, dict):
        raise SpecError([_not_a_spec(data)])
    texts = _texts(data)
    if isinstance(texts.get("roles"), dict):
        roles = texts["roles"].items()
        texts["roles"] = {name: _texts(role) if isinstance(role, dict) else role for name, role in roles}
    return texts


def _texts(owner: dict[str, Any]) -> dict[str, Any]:
    """``owner`` with numbers as text in fields that hold text."""
    result = dict(owner)
    for key, item in owner.items():
        if key in _FREE_KEYS and isinstance(item, dict):
            result[key] = {name: _text_of_number(value) for name, value in item.items()}
        elif key in ("command", "args") and isinstance(item, list):
            result[key] = [_text_of_number(value) for value in item]
    return result


def _text_of_number(value: Any) -> Any:
    return as_text(value) if isinstance(value, int | float) else value


def _not_a_spec(data: Any) -> SpecMistake:
    return SpecMistake(
        "", f"a job spec is a mapping of fields, not {kind_of(data)}", "write lines such as `name: digits`"
    )


@dataclass
class _Parsing:
    """Collects mistakes, and the paths that they make unusable.

    ``dropped``: paths of removed invalid values. ``doubtful``: paths that are incomplete because of them.
    """

    mistakes: dict[SpecMistake, None] = field(default_factory=dict)  # an ordered set
    dropped: set[Path] = field(default_factory=set)
    doubtful: set[Path] = field(default_factory=set)

    def run(self, raw: Any) -> JobSpec:
        copy = plain_copy(raw)
        self.mistakes.update(dict.fromkeys(copy.mistakes))
        self.dropped.update(copy.dropped)
        if not isinstance(copy.value, dict):
            raise SpecError(self.mistakes or [_not_a_spec(copy.value)])
        written = _without_empty({key: item for key, item in copy.value.items() if not key.startswith(_EXTENSION)})
        short = self._validated(
            Shorthands, {key: value for key, value in written.items() if key in SHORTHAND_NAMES}, Expanded({})
        )
        expanded = expand({key: value for key, value in written.items() if key not in SHORTHAND_NAMES}, short)
        wrong = [path[0] for path in self.dropped if path]
        self.doubtful.update(roles_touched_by(wrong, expanded.data.get("roles")))
        spec = self._validated(JobSpec, expanded.data, expanded)
        uncertain = self.dropped | self.doubtful
        ancestors = {path[:length] for path in uncertain for length in range(len(path))}
        for violation in (*expanded.violations, *violations(spec)):
            premises = (violation.path, *violation.depends)
            if not any(path in ancestors or _is_at_or_below(path, uncertain) for path in premises):
                self._add(_origin(violation.path, expanded), violation.message, violation.hint)
        if self.mistakes:
            raise SpecError(_in_order(self.mistakes, written)[:_MAX_MISTAKES])
        return spec

    def _validated(self, model: type[_ModelT], data: dict[str, Any], expanded: Expanded) -> _ModelT:
        """``data`` as ``model``; invalid values are reported and removed until the rest is valid."""
        for _ in range(_MAX_ROUNDS):
            try:
                return model.model_validate(data, extra="forbid")
            except ValidationError as error:
                # Unknown fields first: `comand` explains why `command` is missing.
                details = sorted(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
                for detail in details:
                    place = location_of(detail)
                    # More mistakes are not reported, and finding a suggestion for each takes time.
                    if len(self.mistakes) < _MAX_MISTAKES and not _is_at_or_below(place, self.dropped):
                        explanation = explain_error(detail, model, SHORTHAND_NAMES)
                        self._add(_origin(place, expanded), explanation.message, explanation.hint)
                        if explanation.meant is not None:
                            self.dropped.add((*place[:-1], explanation.meant))
                    self.dropped.add(place)
                    _leave_out(data, place, whole_entry=is_about_key(detail))
        raise SpecError(self.mistakes)

    def _add(self, path: Path, message: str, hint: str | None) -> None:
        self.mistakes[SpecMistake(join_path(path), message, hint)] = None


def _is_at_or_below(place: Path, places: set[Path]) -> bool:
    return any(place[:length] in places for length in range(len(place) + 1))


def _without_empty(written: dict[str, Any]) -> dict[str, Any]:
    """``written`` without empty fields (``image:`` with nothing after it), which count as not written.

    In mappings with keys of the user's choice (``env``, ``labels``) and in lists, an empty value stays and is reported:
    the user may have meant an empty text.
    """
    result: dict[str, Any] = {}
    for key, item in written.items():
        if key == "roles" and isinstance(item, dict):
            result[key] = {
                name: _without_empty(role) if isinstance(role, dict) else role for name, role in item.items()
            }
        elif key == "mounts" and isinstance(item, list):
            result[key] = [_without_empty(mount) if isinstance(mount, dict) else mount for mount in item]
        elif isinstance(item, dict) and key not in _FREE_KEYS:
            result[key] = _without_empty(item)
        elif item is not None:
            result[key] = item
    return result


def _leave_out(data: dict[str, Any], place: Path, *, whole_entry: bool) -> None:
    """Remove the invalid value at ``place`` from ``data``, or replace it by a placeholder if it is required."""
    match place:
        case ("name", *_):
            data["name"] = "unnamed"
        case ("mounts", int(index), *_):
            # A valid placeholder: the indices of the other mounts must not change.
            data["mounts"][index] = {"volume": "unnamed", "at": f"/mnt/wrong-{index}"}
        case ("secrets", int(index), *_):
            data["secrets"][index] = f"_WRONG_{index}"
        case ("roles",):
            data["roles"] = {"worker": {}}
        case ("roles", name) if whole_entry:
            data["roles"].pop(name, None)
            data["roles"] = data["roles"] or {"worker": {}}
        case ("roles", name):
            data["roles"][name] = {}
        case ("topology", *_):
            data.pop("topology", None)
        case _:
            _remove(data, place)


def _remove(data: dict[str, Any], place: Path) -> None:
    """Delete the deepest existing part of ``place``."""
    parent: Any = data
    for part in place[:-1]:
        inner = parent.get(part)
        if not isinstance(inner, dict):
            parent.pop(part, None)
            return
        parent = inner
    parent.pop(place[-1], None)


def _origin(place: Path, expanded: Expanded) -> Path:
    """The path in the user's document of the value at the canonical path ``place``."""
    if place == ("roles",):
        return place if expanded.has_roles else ("workers",)
    for length in range(len(place), 0, -1):
        if place[:length] in expanded.origins:
            return expanded.origins[place[:length]]
    return place


def _in_order(mistakes: Iterable[SpecMistake], written: Mapping[str, Any]) -> list[SpecMistake]:
    """Sorted in the order of the user's document; missing fields come first."""
    order = {key: index for index, key in enumerate(written)}
    return sorted(mistakes, key=lambda mistake: order.get(re.split(r"[.\[]", mistake.path, maxsplit=1)[0], -1))
