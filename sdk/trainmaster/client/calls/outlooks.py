"""What the planner says: what would become of a job, why it waited, how jobs would have fared otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from trainmaster.client.calls.build import params, path, typed
from trainmaster.client.steps import Call
from trainmaster.spec import JobSpec
from trainmaster.wire.forecasts import (
    ClusterChange,
    ExplanationView,
    ForecastRequest,
    ForecastView,
    SimulationRequest,
    SimulationStatusView,
)


def forecast_spec(
    spec: Mapping[str, Any] | JobSpec | None = None,
    *,
    spec_text: str | None = None,
    changes: Mapping[str, Any] | None = None,
    more_nodes: int = 0,
    like: str | None = None,
    without: Sequence[str] = (),
) -> Call[ForecastView]:
    """When and where the planner would start such a job, or why it would wait and what would start sooner; nothing is submitted.

    ``changes`` is laid over the spec as ``clone_job`` does. ``more_nodes`` of the kind of node ``like``, and without the nodes of
    ``without``: were the cluster another one.
    """
    given = _spec(spec, spec_text)
    body = ForecastRequest(**given, changes=dict(changes or {}), cluster=_cluster(more_nodes, like, without))
    return typed(ForecastView, "forecast_spec", "POST", "/forecasts", body=body, is_repeatable=True)


def forecast_job(
    job: str,
    *,
    changes: Mapping[str, Any] | None = None,
    more_nodes: int = 0,
    like: str | None = None,
    without: Sequence[str] = (),
) -> Call[ForecastView]:
    """Why a waiting job waits, its place in the queue, when it is expected to start, and with which changes sooner.

    ``changes``: what if it asked for something else, at its place in the queue; the others as for ``forecast_spec``.
    """
    cluster = _cluster(more_nodes, like, without)
    if not changes and cluster is None:
        return typed(ForecastView, "forecast_job", "GET", path("/jobs/{job}/forecast", job=job))
    body = ForecastRequest(job=job, changes=dict(changes or {}), cluster=cluster)
    return typed(ForecastView, "forecast_spec", "POST", "/forecasts", body=body, is_repeatable=True)


def explain_job(job: str, *, at: datetime | None = None) -> Call[ExplanationView]:
    """Why the job waits, or waited at that time: the planner run again on what it saw then."""
    return typed(ExplanationView, "explain_job", "GET", path("/jobs/{job}/explanation", job=job), query=params(at=at))


def begin_simulation(
    *,
    policy: Mapping[str, Any] | None = None,
    more_nodes: int = 0,
    like: str | None = None,
    without: Sequence[str] = (),
    days: float = 30,
) -> Call[SimulationStatusView]:
    """Begin to try another policy, or other nodes, on the jobs of the last ``days`` days. Platform admins only."""
    cluster = _cluster(more_nodes, like, without)
    body = SimulationRequest(policy=dict(policy or {}), cluster=cluster, days=days)
    return typed(SimulationStatusView, "begin_simulation", "POST", "/simulations", body=body)


def get_simulation(simulation: str) -> Call[SimulationStatusView]:
    """How it stands; its ``result`` once it is done."""
    address = path("/simulations/{simulation}", simulation=simulation)
    return typed(SimulationStatusView, "get_simulation", "GET", address)


def _spec(spec: Mapping[str, Any] | JobSpec | None, spec_text: str | None) -> dict[str, Any]:
    if isinstance(spec, JobSpec):
        return {"spec": spec.model_dump(mode="json", exclude_unset=True)}
    return {"spec_text": spec_text} if spec is None else {"spec": dict(spec)}


def _cluster(more_nodes: int, like: str | None, without: Sequence[str]) -> ClusterChange | None:
    if not more_nodes and not without:
        return None
    return ClusterChange(more_nodes=more_nodes, like=like, without=list(without))
