"""Runs and experiments in MLflow's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.protocols.kit.json_values import milliseconds
from api.protocols.mlflow.runs import RunFacts
from core.db.tables import Project


def run_view(run: RunFacts, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """``metrics``: the last value of each, by name."""
    inputs: Mapping[str, Any] = run.row.inputs if run.row is not None else {}
    return {
        "info": run_info(run),
        "data": {
            "metrics": [metrics[name] for name in sorted(metrics)],
            "params": pairs(run.params),
            "tags": pairs(run.tags),
        },
        "inputs": {"dataset_inputs": inputs.get("datasets", []), "model_inputs": inputs.get("models", [])},
        "outputs": {"model_outputs": run.row.outputs if run.row is not None else []},
    }


def run_info(run: RunFacts) -> dict[str, Any]:
    info = {
        "run_id": run.id,
        "run_uuid": run.id,
        "run_name": run.name,
        "experiment_id": run.project_id,
        "user_id": run.user,
        "status": run.status,
        "start_time": milliseconds(run.started_at),
        "artifact_uri": artifact_uri("runs", run.id),
        "lifecycle_stage": "deleted" if run.row is not None and run.row.is_deleted else "active",
    }
    return info if run.ended_at is None else {**info, "end_time": milliseconds(run.ended_at)}


def experiment_view(project: Project, name: str | None = None) -> dict[str, Any]:
    """A project as an experiment. ``name``: as the script calls it."""
    return {
        "experiment_id": project.id,
        "name": name or project.name,
        "artifact_location": artifact_uri("experiments", project.id),
        "lifecycle_stage": "active",
        "creation_time": milliseconds(project.created_at),
        "last_update_time": milliseconds(project.created_at),
        "tags": [],
    }


def artifact_uri(kind: str, thing_id: str) -> str:
    """Files go through this server: the client prepends its tracking address."""
    return f"mlflow-artifacts:/{kind}/{thing_id}"


def pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in sorted(values.items())]
