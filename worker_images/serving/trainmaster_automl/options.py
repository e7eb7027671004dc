"""What a trial is told: the study's own options in one variable, its point as arguments."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, Sequence

from trainmaster_automl.errors import DataProblem

VARIABLE = "AUTOML_OPTIONS"
_NOT_IN_VARIABLE = ("data", "output", "is_final", "parameters", "started")
# The part of a trial's time that it uses: the rest is for its start, which it does not see, and for its end.
_USED_SHARE = 0.75


@dataclass(frozen=True)
class TrialOptions:
    """``file``: the table in the data's folder; empty: all of them. ``parameters``: the trial's point, ``family`` among them.

    ``test_fraction``: of the rows, which no trial sees. ``folds``: 0 for as many as fit the number of rows. ``is_final``:
    this is no trial but the best point once more, tested and saved. ``weights``: file of a backbone, for images.
    ``keep``: columns that are used although they look as if they told nothing.
    ``seconds``: after which the trial is cut, and counts as failed; 0: never. ``parallel``: trials that
    run at once. ``started``: by the monotonic clock.
    """

    kind: str
    task: str
    metric: str
    data: str
    output: str
    target: str = ""
    file: str = ""
    seed: int = 0
    test_fraction: float = 0.2
    folds: int = 0
    max_rows: int = 500_000
    image_size: int = 0
    weights: str = ""
    keep: Sequence[str] = ()
    seconds: float = 0.0
    parallel: int = 1
    started: float = field(default_factory=time.monotonic)
    is_final: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        return str(self.parameters.get("family", "baseline"))

    def is_out_of_time(self, more_s: float = 0.0) -> bool:
        """Whether something that takes ``more_s`` would come too near to the end of the trial's time."""
        return self.seconds > 0 and time.monotonic() - self.started + more_s > _USED_SHARE * self.seconds


def parse_options(arguments: Sequence[str]) -> TrialOptions:
    """Raises ``DataProblem``: this was not started by an AutoML study."""
    text = os.environ.get(VARIABLE)
    if not text:
        raise DataProblem("%s is not set: `trainmaster automl` starts this program." % VARIABLE)
    study_options = json.loads(text)
    # What it says besides, such as where the data came from, is for who looks at the study.
    known = {
        name: study_options[name]
        for name in TrialOptions.__dataclass_fields__
        if name in study_options and name not in _NOT_IN_VARIABLE
    }
    parameters: dict[str, Any] = {}
    is_final = False
    for word in arguments:
        name, equals, text = word.removeprefix("--").partition("=")
        if word == "--final":
            is_final = True
        elif not word.startswith("--") or not equals:
            raise DataProblem("%r is no argument: --name=value is." % word)
        else:
            parameters[name] = _value(text)
    return TrialOptions(
        **known,
        data=os.environ.get("TRAINMASTER_DATA_DIR", "/data/data"),
        output=os.environ.get("TRAINMASTER_OUTPUT_DIR", "/data/output"),
        is_final=is_final,
        parameters=parameters,
    )


def _value(text: str) -> Any:
    """As ``--name=value`` was written: numbers and booleans as JSON has them, everything else as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text
