"""From what users write to the canonical :class:`~trainmaster.spec.model.JobSpec`, or all their mistakes at once.

The steps: text → plain data (:mod:`document`, :mod:`plain`) → shorthands become roles (:mod:`shorthand`) → fields
(:mod:`fields`, :mod:`model`) → what stands between fields (:mod:`rules`). No step stops the next: what is wrong is
noted and left out, and what was concluded from something wrong is not told.
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
from trainmaster.spec.model import JobSpec, Shorthands
from trainmaster.spec.number_literals import as_text
from trainmaster.spec.plain_data import plain_copy
from trainmaster.spec.rules import breaches
from trainmaster.spec.schema import spec_json_schema
from trainmaster.spec.shorthand import SHORTHAND_NAMES, Expanded, expand, roles_touched_by

__all__ = ["SpecError", "SpecMistake", "parse_spec", "parse_spec_text", "read_spec_text", "spec_json_schema"]

# Whoever has a hundred mistakes reads the first hundred.
_MAX_MISTAKES: Final = 100
# Each round takes out what it found wrong; one uncovers the next at most a few levels deep.
_MAX_ROUNDS: Final = 10
# Mappings whose keys the user chooses.
_FREE_KEYS: Final = frozenset({"env", "labels", "node_selector"})
# Top-level fields that are nobody's: a place for YAML anchors, as in Compose files.
_EXTENSION: Final = "x-"
_ModelT = TypeVar("_ModelT", bound=BaseModel)


def parse_spec(raw: Mapping[str, Any]) -> JobSpec:
    """The canonical spec of ``raw``, shorthands included; a canonical one gives itself.

    Raises:
        SpecError: with every mistake in it; whatever ``raw`` is, nothing else is raised.
    """
    return _Parsing().run(raw)


def parse_spec_text(text: str | bytes) -> JobSpec:
    """The same from YAML or JSON. Raises :class:`SpecError`."""
    return parse_spec(read_spec_text(text))


def read_spec_text(text: str | bytes) -> dict[str, Any]:
    """The fields in ``text`` (YAML or JSON) as written, not yet checked: to lay changes over them, or to send them.

    Ready for JSON: numbers in ``env``, ``args`` and the like are text already, as they were written (``1.10``).

    Raises:
        SpecError: not YAML, or no mapping of fields.
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
    """``owner`` with its numbers as text wherever a text is meant."""
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
    """Collects mistakes, and the places that they made unusable.

    ``dropped``: where something wrong was left out. ``doubtful``: where something is lacking because of that.
    """

    mistakes: dict[SpecMistake, None] = field(default_factory=dict)  # a set that keeps its order
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
        around = {path[:length] for path in uncertain for length in range(len(path))}
        for breach in (*expanded.breaches, *breaches(spec)):
            concluded_from = (breach.path, *breach.depends)
            if not any(path in around or _is_at_or_below(path, uncertain) for path in concluded_from):
                self._add(_origin(breach.path, expanded), breach.message, breach.hint)
        if self.mistakes:
            raise SpecError(_in_order(self.mistakes, written)[:_MAX_MISTAKES])
        return spec

    def _validated(self, model: type[_ModelT], data: dict[str, Any], expanded: Expanded) -> _ModelT:
        """``data`` as ``model``; what is wrong is told and left out until the rest stands."""
        for _ in range(_MAX_ROUNDS):
            try:
                return model.model_validate(data, extra="forbid")
            except ValidationError as error:
                # Unknown fields first: `comand` explains why `command` is missing.
                details = sorted(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
                for detail in details:
                    place = location_of(detail)
                    # Nobody reads more, and looking for what was meant takes its time.
                    if len(self.mistakes) < _MAX_MISTAKES and not _is_at_or_below(place, self.dropped):
                        told = explain_error(detail, model, SHORTHAND_NAMES)
                        self._add(_origin(place, expanded), told.message, told.hint)
                        if told.meant is not None:
                            self.dropped.add((*place[:-1], told.meant))
                    self.dropped.add(place)
                    _leave_out(data, place, whole_entry=is_about_key(detail))
        raise SpecError(self.mistakes)

    def _add(self, path: Path, message: str, hint: str | None) -> None:
        self.mistakes[SpecMistake(join_path(path), message, hint)] = None


def _is_at_or_below(place: Path, places: set[Path]) -> bool:
    return any(place[:length] in places for length in range(len(place) + 1))


def _without_empty(written: dict[str, Any]) -> dict[str, Any]:
    """``written`` without the fields left empty (``image:`` and nothing after it): they count as not written.

    Where users choose the keys (``env``, ``labels``) and in lists an empty value stays: it may have meant a text, and
    is told.
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
    """Take what is wrong at ``place`` out of ``data``, or put something harmless there where the model needs it."""
    match place:
        case ("name", *_):
            data["name"] = "unnamed"
        case ("mounts", int(index), *_):
            # Something valid in its place: the numbers of the other mounts must not move.
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
    """Delete the deepest part of ``place`` that is there."""
    parent: Any = data
    for part in place[:-1]:
        inner = parent.get(part)
        if not isinstance(inner, dict):
            parent.pop(part, None)
            return
        parent = inner
    parent.pop(place[-1], None)


def _origin(place: Path, expanded: Expanded) -> Path:
    """Where the user wrote what stands at the canonical ``place``."""
    if place == ("roles",):
        return place if expanded.has_roles else ("workers",)
    for length in range(len(place), 0, -1):
        if place[:length] in expanded.origins:
            return expanded.origins[place[:length]]
    return place


def _in_order(mistakes: Iterable[SpecMistake], written: Mapping[str, Any]) -> list[SpecMistake]:
    """In the order of the user's own document; what is missing in it comes first."""
    order = {key: index for index, key in enumerate(written)}
    return sorted(mistakes, key=lambda mistake: order.get(re.split(r"[.\[]", mistake.path, maxsplit=1)[0], -1))
