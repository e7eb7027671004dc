"""The spec of a study's clone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session
from trainmaster.spec import SpecError, with_changes
from trainmaster.studies import StudySpec, parse_study
from trainmaster.wire.studies import StudyClone

from api.auth import Caller
from api.jobs.service import clone_name, invalid_spec
from core.db.tables import Study


def cloned_spec(session: Session, caller: Caller, original: Study, body: StudyClone) -> StudySpec:
    """The canonical spec of the clone. Without a ``name`` among the changes it gets the next free one.

    Raises:
        InvalidSpec: all mistakes in it.
    """
    # Fields that other protocols, such as Vertex AI's, store next to the spec belong to the original alone.
    spec = {key: item for key, item in original.spec.items() if key in StudySpec.model_fields}
    raw = changed_spec(spec, body.changes)
    if body.changes.get("name") is None:
        raw["name"] = clone_name(session, caller, original)
    if body.warm_start:
        raw["warm_start"] = _with_study(raw.get("warm_start"), original.id)
    try:
        return parse_study(raw)
    except SpecError as error:
        raise invalid_spec(error) from error


def changed_spec(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``changes`` merged into ``spec`` as a JSON merge patch (RFC 7396): null removes, objects merge, the rest
    replaces.

    Shorthands apply, too: those of jobs below ``template``, and ``metric`` and ``goal``. The template's name and output
    are dropped: the clone's trials would write to the original's output. ``changes`` may state an output.
    """
    raw = with_changes(spec, {key: item for key, item in changes.items() if key != "template"})
    if "template" in changes or isinstance(raw.get("template"), dict):
        raw["template"] = _template(raw.get("template"), changes.get("template", {}))
    if changes.keys() & {"metric", "goal"} and "metrics" not in changes:
        (first, *_) = raw.pop("metrics")
        raw = {"metric": first["name"], "goal": first["goal"], **raw}
    parameters = changes.get("parameters")
    # A value that is not a mapping is reported when the whole spec is parsed.
    for name, parameter in parameters.items() if isinstance(parameters, Mapping) else ():
        # A parameter of another type keeps no field of the original.
        if isinstance(parameter, Mapping) and "type" in parameter and name in spec["parameters"]:
            raw["parameters"][name] = dict(parameter)
    return {key: item for key, item in raw.items() if item is not None}


def _with_study(earlier: Any, study_id: str) -> Any:
    """The studies to warm-start from, with ``study_id`` added. An invalid value is kept, and refused by the parser."""
    named = [earlier] if isinstance(earlier, str) else [] if earlier is None else earlier
    if not isinstance(named, list | tuple) or study_id in named:
        return named
    return [*named, study_id]


def _template(spec: Any, changes: Any) -> Any:
    if not isinstance(changes, Mapping):
        return changes  # null: no template; the parser refuses anything else
    inherited = {key: item for key, item in (spec or {}).items() if key not in ("name", "output", "project")}
    return with_changes(inherited, changes)
