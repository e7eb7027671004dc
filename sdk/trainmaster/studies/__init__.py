"""The study spec: the public schema of a hyperparameter search, shared by the server, the SDK and the CLI."""

from __future__ import annotations

from trainmaster.studies.model import (
    Algorithm,
    Budget,
    Fidelity,
    Goal,
    Measurement,
    Metric,
    Parameter,
    ParameterType,
    Population,
    Scale,
    Stopping,
    StoppingRule,
    StudySpec,
    Value,
    Winner,
)
from trainmaster.studies.parse import parse_study, parse_study_text, read_study_text
from trainmaster.studies.space import Space

__all__ = [
    "Algorithm",
    "Budget",
    "Fidelity",
    "Goal",
    "Measurement",
    "Metric",
    "Parameter",
    "ParameterType",
    "Population",
    "Scale",
    "Space",
    "Stopping",
    "StoppingRule",
    "StudySpec",
    "Value",
    "Winner",
    "parse_study",
    "parse_study_text",
    "read_study_text",
]
