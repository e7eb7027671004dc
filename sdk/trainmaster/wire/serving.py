"""Endpoints, deployed models and batch predictions on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from trainmaster.spec.fields import NAME_PATTERN
from trainmaster.wire.base import WireModel, WireRequest

Framework = Literal["auto", "torch", "sklearn", "tensorflow", "xgboost"]
DeploymentState = Literal["deploying", "ready", "degraded", "failed", "undeploying", "ended"]
ServingReplicaState = Literal["starting", "ready", "draining", "ended"]
MAX_SERVING_REPLICAS: Final = 256
_ROUTE: Final = r"^/[!-~]{0,500}$"

_Model = Field(
    min_length=1,
    max_length=1024,
    description="What serves: `volume/path` of a file or folder, or `name@version` of the model registry.",
    examples=["output/default/job-01/model"],
)
_Framework: Any = Field(default="auto", description="What reads the model; `auto` goes by the names of its files.")
_Trust = Field(
    default=False,
    description="Whether files of the model may run code of whoever wrote them when they are read (pickle, joblib, torch.export, "
    "and skops types that are not known). Only true for models whose author you trust.",
)
_Image = Field(
    default=None,
    max_length=1024,
    description="An image with an HTTP server as Vertex AI's custom containers have it; unstated: the platform's own server.",
)


class ServingSpec(WireModel):
    """What one revision of a deployed model is. ``resources`` and ``env`` as in a job spec.

    ``model``: volume/path of a folder, ``model_file``: the one file in it, if not all of it. ``model_name``: as the user
    named it; ``version_id``: of the registry's version. ``server_image``: that brings the platform's own server, where there are containers.
    """

    model: str
    model_file: str = ""
    model_name: str = ""
    version_id: str | None = None
    server_image: str | None = None
    framework: Framework = "auto"
    trust_code: bool = False
    image: str | None = None
    command: list[str] | str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    secrets: list[str] = Field(default_factory=list)
    port: int | None = None
    health_route: str = "/health"
    predict_route: str = "/predict"
    resources: dict[str, Any] = Field(default_factory=dict)
    priority: int | str = 50
    preemptible: bool = True
    node_selector: dict[str, str] = Field(default_factory=dict)
    timeout_s: float = 60.0
    ready_timeout_s: float = 600.0
    drain_s: float = 5.0
    max_surge: int = 1
    max_unavailable: int = 0

    @property
    def has_own_server(self) -> bool:
        """Whether the platform's server reads the model; else somebody's own does."""
        return self.image is None and self.command is None


class EndpointCreate(WireRequest):
    name: str = Field(
        pattern=NAME_PATTERN, description="Lower case letters, digits and hyphens; the project's only one."
    )
    description: str = Field(default="", max_length=1000)


class DeployRequest(WireRequest):
    """A new deployed model or, of one that is there, its next revision.

    ``replicas`` and ``traffic``: unstated, as they are; of a new one 1, and all of the traffic where nothing else has any.
    """

    deployment: str = Field(default="default", pattern=NAME_PATTERN, description="Its name in the endpoint.")
    model: str = _Model
    framework: Framework = _Framework
    trust_code: bool = _Trust
    image: str | None = _Image
    command: list[str] | str | None = Field(default=None, description="Instead of the image's own.")
    args: list[str] = Field(default_factory=list, max_length=256)
    env: dict[str, str] = Field(default_factory=dict)
    secrets: list[str] = Field(default_factory=list, max_length=256)
    port: int | None = Field(
        default=None, ge=1, le=65535, description="Where the image's server listens (AIP_HTTP_PORT); unstated: 8080."
    )
    health_route: str = Field(default="/health", pattern=_ROUTE, description="Answers 200 when it is ready.")
    predict_route: str = Field(default="/predict", pattern=_ROUTE)
    resources: dict[str, Any] = Field(
        default_factory=dict, description="Of one replica, as in a job spec: cpu, memory, gpus, gpu_type, shm."
    )
    priority: int | str = Field(default=50, description="As in a job spec.")
    preemptible: bool = Field(default=True, description="Whether the platform may give a replica's place to others.")
    node_selector: dict[str, str] = Field(default_factory=dict)
    timeout_s: float = Field(default=60.0, gt=0, le=3600, description="For one request's answer.")
    ready_timeout_s: float = Field(default=600.0, gt=0, le=86400, description="For a replica that runs to get ready.")
    drain_s: float = Field(
        default=5.0, ge=2, le=3600, description="Between the last new request to a replica and its SIGTERM."
    )
    max_surge: int = Field(default=1, ge=0, le=64, description="Replicas above `replicas` during an update.")
    max_unavailable: int = Field(default=0, ge=0, le=64, description="Ready ones below `replicas` during an update.")
    replicas: int | None = Field(default=None, ge=1, le=MAX_SERVING_REPLICAS)
    traffic: int | None = Field(default=None, ge=0, le=100, description="Its part of the requests, in per cent.")
    reason: str = Field(default="", max_length=1000)


class ScaleRequest(WireRequest):
    replicas: int = Field(ge=0, le=MAX_SERVING_REPLICAS, description="0: nothing of it runs, and requests are refused.")


class RollbackRequest(WireRequest):
    """``revision``: unstated, the newest one before the present that ever served."""

    revision: int | None = Field(default=None, ge=1)
    reason: str = Field(default="", max_length=1000)


class TrafficRequest(WireRequest):
    """Each deployed model's part in per cent; together 100. Those that are not named get none."""

    traffic: dict[str, int] = Field(min_length=1, max_length=64, examples=[{"default": 90, "next": 10}])


class ServingReplicaView(WireModel):
    """``words``: what its health route said last, why its job waits, or why it ended."""

    id: str
    revision: int
    state: ServingReplicaState
    job: str
    job_state: str
    words: str = ""
    created_at: datetime
    ready_at: datetime | None = None
    ended_at: datetime | None = None


class RevisionView(WireModel):
    """``failures``: of its replicas in a row. ``verdict``: why it was given up."""

    number: int
    spec: ServingSpec
    user: str
    reason: str = ""
    failures: int = 0
    verdict: str = ""
    created_at: datetime
    stable_at: datetime | None = None


class DeploymentView(WireModel):
    """``wanted``: the revision that is to serve, ``stable``: the last one of which all replicas were ready."""

    id: str
    name: str
    state: DeploymentState
    note: str = ""
    traffic: int
    replicas: int
    ready: int
    wanted: int
    stable: int | None = None
    model: str
    created_at: datetime


class EndpointView(WireModel):
    id: str
    name: str
    project: str
    user: str
    description: str = ""
    deployments: list[DeploymentView] = Field(default_factory=list)
    created_at: datetime
    deleting_at: datetime | None = None


class DeploymentDetail(DeploymentView):
    """``revision_list``: the newest 100, newest first. ``replica_list``: those that have not ended, then the newest of those
    that have.
    """

    revision_list: list[RevisionView] = Field(default_factory=list)
    replica_list: list[ServingReplicaView] = Field(default_factory=list)


class EndpointChange(WireModel):
    """One line of an endpoint's history. ``what``: such as ``deployment.rolled_back``; ``actor``: as in events."""

    at: datetime
    actor: str
    what: str
    deployment: str | None = None
    revision: int | None = None
    reason: str = ""


class EndpointDetail(EndpointView):
    deployments: list[DeploymentDetail] = Field(default_factory=list)  # type: ignore[assignment]


class BatchPredictRequest(WireRequest):
    """A job that predicts for every instance of some files. See ``docs/howto/serving.md`` for what it reads and writes."""

    name: str = Field(default="batch-predict", pattern=NAME_PATTERN)
    model: str = _Model
    framework: Framework = _Framework
    trust_code: bool = _Trust
    image: str | None = Field(
        default=None, max_length=1024, description="One that has `trainmaster_serving`; unstated: the platform's."
    )
    input: str = Field(
        min_length=1, max_length=1024, description="volume/path of a JSONL or CSV file, or of a folder of such files."
    )
    output: str | None = Field(
        default=None, max_length=1024, description="volume/path; unstated: a folder of the job's."
    )
    format: Literal["auto", "jsonl", "csv"] = "auto"
    csv_rows: Literal["object", "array"] = Field(
        default="object",
        description="What an instance of a CSV file is: its cells by the header's names, or in their order.",
    )
    batch_size: int = Field(default=64, ge=1, le=100_000, description="Instances that the model is given at once.")
    shard_size: int = Field(
        default=10_000, ge=1, le=10_000_000, description="Instances of one output file; what a lost replica does again."
    )
    replicas: int = Field(default=1, ge=1, le=MAX_SERVING_REPLICAS)
    resources: dict[str, Any] = Field(
        default_factory=dict, description="Of one replica, as in a job spec: cpu, memory, gpus, gpu_type, shm."
    )
    env: dict[str, str] = Field(default_factory=dict)
    secrets: list[str] = Field(default_factory=list, max_length=256)
    priority: int | str = 50
    preemptible: bool = True
    node_selector: dict[str, str] = Field(default_factory=dict)
    max_run_time: str | float | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class BatchOutcome(WireModel):
    """What an ended batch prediction wrote. ``first_error``: what one of the errors says, empty where there are none."""

    predictions: int
    errors: int
    first_error: str = ""
    output: str  # volume/path of the folder with predictions-*.jsonl and errors-*.jsonl

    @property
    def has_only_errors(self) -> bool:
        return self.errors > 0 and self.predictions == 0


class Predicted(WireModel):
    """``metadata``: what the model says of all predictions, such as ``{"classes": ["no", "yes"]}``, the order of the figures in
    each; empty where it says nothing.
    """

    predictions: list[Any]
    metadata: Any = Field(default_factory=dict)
