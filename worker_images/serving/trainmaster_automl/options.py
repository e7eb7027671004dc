"""Options of a trial: those of the study in one environment variable, the trial's point as arguments."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, Sequence

from trainmaster_automl.errors import DataProblem

VARIABLE = "AUTOML_OPTIONS"
_NOT_IN_VARIABLE = ("data", "output", "is_final", "parameters", "started")
# Share of the time limit that is used: the rest is for start-up, which the trial does not see, and for its end.
_USED_SHARE = 0.75


@dataclass(frozen=True)
class TrialOptions:
    """``file``: the table in the data's folder; empty: all tables. ``parameters``: the trial's point, including
    ``family``.

    ``test_fraction``: share of rows for the final test. ``folds``: 0: chosen by the number of rows. ``is_final``: the
    final run, which tests and saves the best point. ``weights``: file of a backbone, for images. ``keep``: columns to
    use even if profiling finds them uninformative. ``seconds``: time limit, after which the trial is stopped and counts
    as failed; 0: none. ``parallel``: number of concurrent trials. ``started``: by the monotonic clock.
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
        """Whether work of ``more_s`` seconds would exceed the usable share of the time limit."""
        return self.seconds > 0 and time.monotonic() - self.started + more_s > _USED_SHARE * self.seconds


def parse_options(arguments: Sequence[str]) -> TrialOptions:
    """The options of this process. Raises ``DataProblem``: it was not started by an AutoML study."""
    text = os.environ.get(VARIABLE)
    if not text:
        raise DataProblem("%s is not set: `trainmaster automl` starts this program." % VARIABLE)
    study_options = json.loads(text)
    # Other entries, such as the source of the data, are for people who view the study.
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
            raise DataProblem("%r is not an argument; use --name=value." % word)
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
    """The value in ``--name=value``: numbers and booleans as in JSON, everything else as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text
