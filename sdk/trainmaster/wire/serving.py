"""API models of endpoints, deployments and batch predictions."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from trainmaster.spec.fields import DISPLAY_NAME_PATTERN
from trainmaster.wire.base import WireModel, WireRequest

Framework = Literal["auto", "torch", "sklearn", "tensorflow", "xgboost"]
DeploymentState = Literal["deploying", "ready", "degraded", "failed", "undeploying", "ended"]
ServingReplicaState = Literal["starting", "ready", "draining", "ended"]
MAX_SERVING_REPLICAS: Final = 256
_ROUTE: Final = r"^/[!-~]{0,500}$"

_Model = Field(
    min_length=1,
    max_length=1024,
    description="The model: `volume/path` of a file or folder, or `name@version` of the model registry.",
    examples=["output/default/job-01/model"],
)
_Framework: Any = Field(default="auto", description="Framework that loads the model; `auto`: by its file names.")
_Trust = Field(
    default=False,
    description="Whether loading the model may run code from its files (pickle, joblib, torch.export, unknown skops "
    "types). Set it only if you trust the model's author.",
)
_Image = Field(
    default=None,
    max_length=1024,
    description="Image with an HTTP server, like Vertex AI's custom containers; default: the platform's model server.",
)


class ServingSpec(WireModel):
    """Spec of a revision of a deployment. ``resources`` and ``env`` as in a job spec.

    ``model``: volume/path of a folder; ``model_file``: a single file in it, if not the whole folder. ``model_name``: as
    written by the user; ``version_id``: of the registry's version. ``server_image``: image with the platform's model
    server, for container executors.
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
        """Whether the platform's model server serves it, not a user's server."""
        return self.image is None and self.command is None


class EndpointCreate(WireRequest):
    name: str = Field(
        pattern=DISPLAY_NAME_PATTERN,
        description="At most 63 letters, digits, '.', '_' and '-', with a letter or digit at both ends; unique in the "
        "project.",
    )
    description: str = Field(default="", max_length=1000)


class DeployRequest(WireRequest):
    """Create a deployment, or a new revision of an existing one.

    ``replicas`` and ``traffic``: default: unchanged; for a new deployment 1 replica, and all traffic if no other
    deployment has any.
    """

    deployment: str = Field(default="default", pattern=DISPLAY_NAME_PATTERN, description="Name of the deployment.")
    model: str = _Model
    framework: Framework = _Framework
    trust_code: bool = _Trust
    image: str | None = _Image
    command: list[str] | str | None = Field(default=None, description="Overrides the image's command.")
    args: list[str] = Field(default_factory=list, max_length=256)
    env: dict[str, str] = Field(default_factory=dict)
    secrets: list[str] = Field(default_factory=list, max_length=256)
    port: int | None = Field(
        default=None, ge=1, le=65535, description="Port of the image's server (AIP_HTTP_PORT); default: 8080."
    )
    health_route: str = Field(
        default="/health", pattern=_ROUTE, description="Route that answers 200 when the server is ready."
    )
    predict_route: str = Field(default="/predict", pattern=_ROUTE)
    resources: dict[str, Any] = Field(
        default_factory=dict, description="Resources of a replica, as in a job spec: cpu, memory, gpus, gpu_type, shm."
    )
    priority: int | str = Field(default=50, description="As in a job spec.")
    preemptible: bool = Field(default=True, description="Whether the scheduler may preempt replicas.")
    node_selector: dict[str, str] = Field(default_factory=dict)
    timeout_s: float = Field(default=60.0, gt=0, le=3600, description="Timeout of a request.")
    ready_timeout_s: float = Field(
        default=600.0, gt=0, le=86400, description="Time for a running replica to become ready."
    )
    drain_s: float = Field(
        default=5.0, ge=2, le=3600, description="Time between a replica's last new request and its SIGTERM."
    )
    max_surge: int = Field(default=1, ge=0, le=64, description="Replicas above `replicas` during an update.")
    max_unavailable: int = Field(
        default=0, ge=0, le=64, description="Ready replicas below `replicas` during an update."
    )
    replicas: int | None = Field(default=None, ge=1, le=MAX_SERVING_REPLICAS)
    traffic: int | None = Field(default=None, ge=0, le=100, description="Traffic in per cent.")
    reason: str = Field(default="", max_length=1000)


class ScaleRequest(WireRequest):
    replicas: int = Field(ge=0, le=MAX_SERVING_REPLICAS, description="0: nothing runs, and requests are rejected.")


class RollbackRequest(WireRequest):
    """``revision``: default: the newest one before the present that was ready."""

    revision: int | None = Field(default=None, ge=1)
    reason: str = Field(default="", max_length=1000)


class TrafficRequest(WireRequest):
    """Traffic split in per cent by deployment; the sum is 100. Omitted deployments get none."""

    traffic: dict[str, int] = Field(min_length=1, max_length=64, examples=[{"default": 90, "next": 10}])


class ServingReplicaView(WireModel):
    """A serving replica. ``words``: last message of its health route, why its job waits, or why it ended."""

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
    """A revision. ``failures``: consecutive failures of its replicas. ``verdict``: why the revision failed."""

    number: int
    spec: ServingSpec
    user: str
    reason: str = ""
    failures: int = 0
    verdict: str = ""
    created_at: datetime
    stable_at: datetime | None = None


class DeploymentView(WireModel):
    """A deployment. ``wanted``: the desired revision; ``stable``: the last revision with all replicas ready."""

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
    """``revision_list``: the newest 100, newest first. ``replica_list``: live replicas, then the newest ended ones."""

    revision_list: list[RevisionView] = Field(default_factory=list)
    replica_list: list[ServingReplicaView] = Field(default_factory=list)


class EndpointChange(WireModel):
    """One entry of an endpoint's history. ``what``: such as ``deployment.rolled_back``; ``actor``: as in events."""

    at: datetime
    actor: str
    what: str
    deployment: str | None = None
    revision: int | None = None
    reason: str = ""


class EndpointDetail(EndpointView):
    deployments: list[DeploymentDetail] = Field(default_factory=list)  # type: ignore[assignment]


class BatchPredictRequest(WireRequest):
    """A job that predicts for every instance of input files; formats: see ``docs/howto/serving.md``."""

    name: str = Field(default="batch-predict", pattern=DISPLAY_NAME_PATTERN)
    model: str = _Model
    framework: Framework = _Framework
    trust_code: bool = _Trust
    image: str | None = Field(
        default=None, max_length=1024, description="Image with `trainmaster_serving`; default: the platform's."
    )
    input: str = Field(
        min_length=1, max_length=1024, description="`volume/path` of a JSONL or CSV file, or of a folder of such files."
    )
    output: str | None = Field(
        default=None, max_length=1024, description="`volume/path`; default: the job's own folder."
    )
    format: Literal["auto", "jsonl", "csv"] = "auto"
    csv_rows: Literal["object", "array"] = Field(
        default="object",
        description="Instances of a CSV file: objects with the header's names, or arrays.",
    )
    batch_size: int = Field(default=64, ge=1, le=100_000, description="Instances per call of the model.")
    shard_size: int = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="Instances per output file; a lost replica repeats its unfinished shard.",
    )
    replicas: int = Field(default=1, ge=1, le=MAX_SERVING_REPLICAS)
    resources: dict[str, Any] = Field(
        default_factory=dict, description="Resources of a replica, as in a job spec: cpu, memory, gpus, gpu_type, shm."
    )
    env: dict[str, str] = Field(default_factory=dict)
    secrets: list[str] = Field(default_factory=list, max_length=256)
    priority: int | str = 50
    preemptible: bool = True
    node_selector: dict[str, str] = Field(default_factory=dict)
    max_run_time: str | float | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class BatchOutcome(WireModel):
    """Outcome of a batch prediction. ``first_error``: message of an error; empty without errors."""

    predictions: int
    errors: int
    first_error: str = ""
    output: str  # volume/path of the folder with predictions-*.jsonl and errors-*.jsonl

    @property
    def has_only_errors(self) -> bool:
        return self.errors > 0 and self.predictions == 0


class PredictResponse(WireModel):
    """``metadata``: the model's, such as ``{"classes": ["no", "yes"]}``, the order of probabilities; may be empty."""

    predictions: list[Any]
    metadata: Any = Field(default_factory=dict)
