"""The environment of a study's trial, and a file with its parameters as JSON."""

from __future__ import annotations

import json

from core.domain.contracts.context import Seat


def variables(seat: Seat) -> dict[str, str]:
    """Empty unless the job is a trial."""
    trial = seat.context.trial
    if trial is None:
        return {}
    return {
        "TRAINMASTER_STUDY": trial.study,
        "TRAINMASTER_TRIAL": str(trial.number),
        "TRAINMASTER_PARAMETERS": json.dumps(trial.parameters),
        "TRAINMASTER_PARAMETERS_FILE": _path(seat),
    }


def files(seat: Seat) -> dict[str, str]:
    trial = seat.context.trial
    return {} if trial is None else {_path(seat): json.dumps(trial.parameters, indent=1) + "\n"}


def _path(seat: Seat) -> str:
    return f"{seat.context.paths.own}/parameters.json"
