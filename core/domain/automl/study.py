"""The study of an AutoML request, as a raw study spec."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.domain.automl.space import IMAGES, METRICS, TABULAR, space_of

LABEL: Final = "automl"
VARIABLE: Final = "AUTOML_OPTIONS"
# In images; the process executor names the file.
MODULE: Final = ("python", "-m", "trainmaster_automl")
WEIGHTS_AT: Final = "/data/weights"
# A trial may take this fraction of the total time, and at least so long.
_PART: Final = 0.5
_LEAST_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class AutoMLStudyRequest:
    """``folder``: volume/path of a folder, ``file``: the one table in it. ``options``: further options of the trainer.

    ``weights``: volume/path of the folder with the backbone's file ``weights_file``.
    """

    name: str
    project: str
    model: str
    kind: str
    task: str
    metric: str
    families: Sequence[str]
    folder: str
    file: str
    options: Mapping[str, Any]
    is_imbalanced: bool
    max_time_s: float
    trials: int
    parallel: int
    seed: int
    resources: Mapping[str, Any]
    image: str | None
    command: Sequence[str]
    aliases: Sequence[str] = ()
    weights: str = ""
    weights_file: str = ""
    notes: Sequence[str] = ()


def study_of(order: AutoMLStudyRequest) -> dict[str, Any]:
    """The raw study spec, to be parsed by ``trainmaster.studies.parse_study``."""
    parameters, first = space_of(order.kind, order.families, is_imbalanced=order.is_imbalanced)
    seconds = max(_LEAST_S, order.max_time_s * _PART)
    options = {
        "kind": order.kind,
        "task": order.task,
        "metric": order.metric,
        "file": order.file,
        "seed": order.seed,
        "seconds": seconds,
        "parallel": min(order.parallel, order.trials),  # divides the CPUs if a trial states none
        "notes": list(order.notes),
        **order.options,
    }
    template: dict[str, Any] = {
        "command": list(order.command),
        "env": {VARIABLE: json.dumps(options, ensure_ascii=False)},
        "input": order.folder,
        "labels": {LABEL: order.kind},
        "roles": {"worker": {"replicas": 1, "processes_per_replica": 1, "resources": dict(order.resources)}},
        "max_run_time": seconds,
        "max_restarts": 0,  # the same point would fail again
    }
    if order.image is not None:
        template["image"] = order.image
    if order.weights:
        volume, _, path = order.weights.partition("/")
        template["mounts"] = [{"volume": volume, "path": path, "at": WEIGHTS_AT}]
        options["weights"] = f"{WEIGHTS_AT}/{order.weights_file}"
        template["env"] = {VARIABLE: json.dumps(options, ensure_ascii=False)}
    return {
        "name": order.name,
        "project": order.project,
        "template": template,
        "parameters": parameters,
        "metric": order.metric,
        "goal": METRICS[order.task][order.metric],
        # Tables: the mean over the folds so far, the last of which covers all. Images: the best epoch, whose network is
        # saved.
        "measurement": "last" if order.kind == TABULAR else "best",
        "stopping": {"rule": "asha", "min_steps": 3} if order.kind == IMAGES else {"rule": "median", "min_trials": 5},
        "budget": {"max_time": order.max_time_s, "trials": order.trials, "parallel": order.parallel},
        "initial": first,
        "winner": {"model": order.model, "aliases": list(order.aliases), "arguments": ["--final"]},
        "seed": order.seed,
    }


def options_of(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """The trainer options of an AutoML study, from its canonical spec; ``None``: it is another kind of study."""
    template = spec.get("template") or {}
    if LABEL not in (template.get("labels") or {}):
        return None
    try:
        options = json.loads((template.get("env") or {}).get(VARIABLE, ""))
    except ValueError:
        return None
    return options if isinstance(options, dict) else None
