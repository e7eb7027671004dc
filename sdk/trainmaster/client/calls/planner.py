"""The queue, shares, quotas, policy, reservations, forecasts, simulations, and the Vertex AI mapping table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from trainmaster.client.calls.build import params, path, typed, without_content
from trainmaster.client.steps import Call
from trainmaster.spec import JobSpec
from trainmaster.wire.admin import VertexMachineView, VertexTableUpdate, VertexTableView
from trainmaster.wire.base import AmountText, Page
from trainmaster.wire.forecasts import (
    ClusterChange,
    ExplanationView,
    ForecastRequest,
    ForecastView,
    SimulationRequest,
    SimulationStatusView,
)
from trainmaster.wire.scheduling import (
    PolicyUpdate,
    PolicyView,
    QueuePage,
    QuotaUpdate,
    QuotaView,
    ReservationCreate,
    ReservationView,
    RunningJobView,
    SharesView,
)


def get_vertex_table() -> Call[VertexTableView]:
    """The mapping table for Vertex AI's clients, with the source of each entry."""
    return typed(VertexTableView, "get_vertex_table", "GET", "/vertex-table")


def set_vertex_table(table: Mapping[str, Any], *, generation: int) -> Call[VertexTableView]:
    """Replace the mapping table: ``{"machines": {"n1-*": {"cpu": 4}}}``.

    Args:
        generation: of the table that was read; raises ``Conflict`` if the table was changed since then.
    """
    body = VertexTableUpdate(table=dict(table), generation=generation)
    return typed(VertexTableView, "set_vertex_table", "PUT", "/vertex-table", body=body)


def try_vertex_machine(
    machine_type: str, *, accelerator: str | None = None, count: int | None = None, location: str | None = None
) -> Call[VertexMachineView]:
    """Resources of a replica on such a machine: ``try_vertex_machine("n1-standard-4", accelerator="NVIDIA_L4")``."""
    query = params(machine_type=machine_type, accelerator=accelerator, count=count, location=location)
    return typed(VertexMachineView, "try_vertex_machine", "GET", "/vertex-table/machine", query=query)


def forecast_spec(
    spec: Mapping[str, Any] | JobSpec | None = None,
    *,
    spec_text: str | None = None,
    changes: Mapping[str, Any] | None = None,
    more_nodes: int = 0,
    like: str | None = None,
    without: Sequence[str] = (),
) -> Call[ForecastView]:
    """Forecast of when and where such a job would start, why it would wait, and which changes start sooner.

    Nothing is submitted. ``changes``: merge patch for the spec, as in ``clone_job``. Hypothetical cluster: with
    ``more_nodes`` nodes like node ``like``, and without the nodes ``without``.
    """
    spec_fields = _spec(spec, spec_text)
    body = ForecastRequest(**spec_fields, changes=dict(changes or {}), cluster=_cluster(more_nodes, like, without))
    return typed(ForecastView, "forecast_spec", "POST", "/forecasts", body=body, is_repeatable=True)


def forecast_job(
    job: str,
    *,
    changes: Mapping[str, Any] | None = None,
    more_nodes: int = 0,
    like: str | None = None,
    without: Sequence[str] = (),
) -> Call[ForecastView]:
    """Why a job waits, its queue position, its expected start, and which changes start it sooner.

    ``changes``: hypothetical changes of its spec at the same queue position; the others as in ``forecast_spec``.
    """
    cluster = _cluster(more_nodes, like, without)
    if not changes and cluster is None:
        return typed(ForecastView, "forecast_job", "GET", path("/jobs/{job}/forecast", job=job))
    body = ForecastRequest(job=job, changes=dict(changes or {}), cluster=cluster)
    return typed(ForecastView, "forecast_spec", "POST", "/forecasts", body=body, is_repeatable=True)


def explain_job(job: str, *, at: datetime | None = None) -> Call[ExplanationView]:
    """Why the job waits, or waited at that time, by replaying the scheduling decision."""
    return typed(ExplanationView, "explain_job", "GET", path("/jobs/{job}/explanation", job=job), query=params(at=at))


def begin_simulation(
    *,
    policy: Mapping[str, Any] | None = None,
    more_nodes: int = 0,
    like: str | None = None,
    without: Sequence[str] = (),
    days: float = 30,
) -> Call[SimulationStatusView]:
    """Start a simulation of the last ``days`` days' jobs with another policy or other nodes. Platform admins only."""
    cluster = _cluster(more_nodes, like, without)
    body = SimulationRequest(policy=dict(policy or {}), cluster=cluster, days=days)
    return typed(SimulationStatusView, "begin_simulation", "POST", "/simulations", body=body)


def get_simulation(simulation: str) -> Call[SimulationStatusView]:
    """The simulation's status, with its ``result`` when it is done."""
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


def list_queue_page(
    *, project: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[QueuePage]:
    """One page of the waiting jobs in queue order, and their total number."""
    query = params(project=project, limit=limit, cursor=cursor)
    return typed(QueuePage, "list_queue", "GET", "/queue", query=query)


def list_running_page(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[RunningJobView]]:
    """One page of the running jobs with their expected ends."""
    return typed(
        Page[RunningJobView], "list_running", "GET", "/queue/running", query=params(limit=limit, cursor=cursor)
    )


def get_shares() -> Call[SharesView]:
    """Each project's share of the cluster: present usage, recent usage, and fair share by weights."""
    return typed(SharesView, "get_shares", "GET", "/shares")


def list_quotas_page(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[QuotaView]]:
    """One page of the quotas of the caller's projects, by name."""
    return typed(Page[QuotaView], "list_quotas", "GET", "/quotas", query=params(limit=limit, cursor=cursor))


def get_quota(project: str) -> Call[QuotaView]:
    """The project's quota and its present usage."""
    return typed(QuotaView, "get_quota", "GET", path("/projects/{project}/quota", project=project))


def update_quota(
    project: str,
    *,
    limits: Mapping[str, AmountText] | None = None,
    guaranteed: Mapping[str, AmountText] | None = None,
    user_limit: Mapping[str, AmountText] | None = None,
    users: Mapping[str, Mapping[str, AmountText] | None] | None = None,
    user_guaranteed: Mapping[str, Mapping[str, AmountText] | None] | None = None,
    user_weights: Mapping[str, float | None] | None = None,
    weight: float | None = None,
    max_priority: int | str | None = "",
) -> Call[QuotaView]:
    """Change the given parts of the quota; ``None`` in a mapping removes a limit.

    Args:
        limits: such as ``{"gpus": 16, "gpus/H100": 8, "memory": "512Gi", "jobs": None}``.
        user_limit: limits for each user of the project; ``users``: limits of single users instead.
        user_guaranteed: guarantees of single users against other users of the project.
        max_priority: maximum priority of its jobs, 0 to 100 or a name; ``None``: no maximum; empty: unchanged.
    """
    fields: dict[str, Any] = {
        "limit": limits,
        "guaranteed": guaranteed,
        "user_limit": user_limit,
        "users": users,
        "user_guaranteed": user_guaranteed,
        "user_weights": user_weights,
        "weight": weight,
    }
    changes = {name: value for name, value in fields.items() if value is not None}
    if max_priority != "":
        changes["max_priority"] = max_priority
    body = QuotaUpdate(**changes)
    return typed(QuotaView, "update_quota", "PATCH", path("/projects/{project}/quota", project=project), body=body)


def get_policy() -> Call[PolicyView]:
    """The scheduling policy's settings."""
    return typed(PolicyView, "get_policy", "GET", "/policy")


def update_policy(settings: Mapping[str, Any]) -> Call[PolicyView]:
    """Change these settings: ``{"time_slice": "10m", "order": "shortest-first"}``."""
    return typed(PolicyView, "update_policy", "PATCH", "/policy", body=PolicyUpdate(settings=dict(settings)))


def list_reservations_page(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[ReservationView]]:
    """One page of the present and future reservations, by their begin."""
    query = params(limit=limit, cursor=cursor)
    return typed(Page[ReservationView], "list_reservations", "GET", "/reservations", query=query)


def create_reservation(
    name: str,
    *,
    project: str,
    ends_at: datetime,
    begins_at: datetime | None = None,
    nodes: Sequence[str] = (),
    node_selector: Mapping[str, str] | None = None,
    count: int | None = None,
) -> Call[ReservationView]:
    """Reserve nodes for a project: by name, or ``count`` nodes with the given labels."""
    optional: dict[str, Any] = {"begins_at": begins_at, "count": count}
    body = ReservationCreate(
        name=name,
        project=project,
        ends_at=ends_at,
        **({"nodes": list(nodes)} if nodes else {}),
        **({"node_selector": dict(node_selector)} if node_selector else {}),
        **{key: value for key, value in optional.items() if value is not None},
    )
    return typed(ReservationView, "create_reservation", "POST", "/reservations", body=body)


def delete_reservation(reservation: str) -> Call[None]:
    """End a reservation."""
    at = path("/reservations/{reservation}", reservation=reservation)
    return without_content("delete_reservation", "DELETE", at)
