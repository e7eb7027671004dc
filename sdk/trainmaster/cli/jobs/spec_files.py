"""Specs as files: reading a spec argument, and writing specs as YAML."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.cli.terminal.exits import WrongUse
from trainmaster.errors import LocalFileProblem

if TYPE_CHECKING:
    from trainmaster.studies import StudySpec


def read_spec_argument(spec_file: str) -> dict[str, Any]:
    """The job spec of a file, or of stdin for ``-``. Raises ``WrongUse``."""
    from trainmaster.client.compose import read_spec, spec_of_text

    return _read(spec_file, read_spec, spec_of_text)


def read_study_argument(spec_file: str) -> dict[str, Any]:
    """The study spec of a file, or of stdin for ``-``. Raises ``WrongUse``."""
    from trainmaster.client.flows.studies import read_study, study_of_text

    return _read(spec_file, read_study, study_of_text)


def _read(
    spec_file: str,
    read: Callable[[str], Mapping[str, Any]],
    spec_of_text: Callable[[str, str], Mapping[str, Any]],
) -> dict[str, Any]:
    try:
        return dict(spec_of_text(sys.stdin.read(), "stdin") if spec_file == "-" else read(spec_file))
    except LocalFileProblem as error:
        raise WrongUse(error.sentence) from error


def spec_yaml(spec: Any) -> str:
    """A spec as YAML without defaults."""
    import yaml

    plain = spec.model_dump(mode="json", exclude_defaults=True)
    _write_durations(spec, plain)
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def study_yaml(spec: StudySpec) -> str:
    """A study's spec as YAML without defaults: integers as such, and a template without name and project."""
    import yaml

    from trainmaster.studies.model import ParameterType

    plain = spec.model_dump(mode="json", exclude_defaults=True)
    _write_durations(spec, plain)
    for name, parameter in spec.parameters.items():
        if parameter.type is ParameterType.INTEGER:
            own = plain["parameters"][name]
            own.update({end: int(own[end]) for end in ("min", "max") if end in own})
    for field in ("name", "project"):  # both are the study's
        plain.get("template", {}).pop(field, None)
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def _write_durations(model: Any, plain: Any) -> None:
    """Replace seconds in ``plain``, the dump of ``model``, by durations such as ``1h``."""
    from pydantic import BaseModel

    from trainmaster.spec.fields import is_duration
    from trainmaster.spec.quantity import format_duration

    if isinstance(model, BaseModel) and isinstance(plain, dict):
        for name, info in type(model).model_fields.items():
            if plain.get(name) is None:
                continue
            if is_duration(info.annotation, info.metadata):
                plain[name] = format_duration(plain[name])
            else:
                _write_durations(getattr(model, name), plain[name])
    elif isinstance(model, Mapping) and isinstance(plain, dict):
        for key, item in model.items():
            _write_durations(item, plain.get(key))
