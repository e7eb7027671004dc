"""Mistakes in what users write as a study, collected so that all are reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from trainmaster.spec.error_messages import explain_error, location_of
from trainmaster.spec.errors import Path, SpecMistake, join_path
from trainmaster.spec.fields import kind_of
from trainmaster.studies.model import Metric, Parameter

# For ``metrics``.
SHORTHANDS: Final = ("metric", "goal")
# Hints for missing fields; those of the job spec do not fit: a metric's name is not a display name.
MISSING_HINTS: Final[Mapping[tuple[type[BaseModel], str], str]] = {
    (Metric, "name"): "write what the trials report, such as `metric: loss`",
    (Metric, "goal"): "write `goal: minimize` or `goal: maximize`",
    (Parameter, "type"): "write float, integer, categorical or discrete",
}

_ModelT = TypeVar("_ModelT", bound=BaseModel)


class StudyMistakes:
    """Each mistake once. Invalid parts are left out; mistakes that only follow from them are not added."""

    def __init__(self) -> None:
        self._mistakes: dict[SpecMistake, None] = {}

    def __bool__(self) -> bool:
        return bool(self._mistakes)

    def add(self, path: Path, message: str, hint: str | None = None) -> None:
        self._mistakes[SpecMistake(join_path(path), message, hint)] = None

    def extend(self, mistakes: Iterable[SpecMistake]) -> None:
        self._mistakes.update(dict.fromkeys(mistakes))

    def are_in(self, field: str) -> bool:
        """Whether any mistake is in this top-level field."""
        return any(mistake.path.startswith(field) for mistake in self._mistakes)

    def in_order(self, document: Mapping[str, Any]) -> list[SpecMistake]:
        """Sorted in the order of the user's document; missing fields come first."""
        order = {key: index for index, key in enumerate(document)}
        return sorted(
            self._mistakes, key=lambda mistake: order.get(re.split(r"[.\[]", mistake.path, maxsplit=1)[0], -1)
        )

    def validate(
        self, model: type[_ModelT], data: Any, place: Path, places: Mapping[str, Path] | None = None
    ) -> _ModelT | None:
        """``data`` as ``model``; ``None`` after reporting its mistakes.

        ``places``: paths of fields written elsewhere.
        """
        if not isinstance(data, dict):
            self.add(place, f"must be a mapping, not {kind_of(data)}")
            return None
        try:
            return model.model_validate({key: item for key, item in data.items() if item is not None}, extra="forbid")
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                explanation = explain_error(detail, model, frozenset(SHORTHANDS) if not place else frozenset())
                within = location_of(detail)
                field = str(within[0]) if within else ""
                hint = MISSING_HINTS.get((model, field)) if detail["type"] == "missing" else explanation.hint
                at = (*places[field], *within[1:]) if places and field in places else (*place, *within)
                self.add(at, explanation.message, hint)
            return None

    def validate_or_word(self, model: type[_ModelT], field: str, data: Any, place: Path) -> _ModelT | None:
        """Like :meth:`validate`, but text is short for a mapping with only ``field``; mistakes are then at its path."""
        if isinstance(data, str):
            return self.validate(model, {field: data}, place, {field: place})
        return self.validate(model, data, place)
