"""All tables. One schema for PostgreSQL and SQLite; ``migrations/`` holds its history.

Times are UTC. ``generation`` columns are compared and set by every write that moves a state. JSON columns hold
values that are only read whole; whatever is filtered or joined on has a column of its own.
"""

from core.db.tables.accounts import Archive, LoginCode, Membership, Project, Secret, Token, User, Volume
from core.db.tables.base import NAMING, Base, BigId, Json, UtcDateTime
from core.db.tables.fleet import DatabaseIdentity, Lease, Node, NodeFailure, Orphan
from core.db.tables.jobs import (
    Attempt,
    Checkpoint,
    Event,
    IdempotencyKey,
    Job,
    JobLabel,
    PinnedCheckpoint,
    Replica,
    Retention,
)
from core.db.tables.metrics import MetricChunk, MetricObject, MetricSegment, MetricSeries, MetricStream
from core.db.tables.models import Model, ModelAlias, ModelChange, ModelFile, ModelHold, ModelVersion
from core.db.tables.planning import BookingRow, PlanRecord, PolicyRow, Question, StartForecastRow, Usage, WaitReason
from core.db.tables.records import VertexLink, VertexRecord
from core.db.tables.serving import Deployment, DeploymentRevision, Endpoint, ServingReplica
from core.db.tables.studies import Study, Trial
from core.db.tables.tracking import (
    MlflowModel,
    MlflowModelVersion,
    MlflowRegisteredModel,
    MlflowRun,
    RayJob,
    RayPackage,
    TensorBoardLink,
    VertexEndpoint,
    VertexResource,
    VertexTableRow,
)

__all__ = [
    "NAMING",
    "Archive",
    "Attempt",
    "Base",
    "BigId",
    "BookingRow",
    "Checkpoint",
    "DatabaseIdentity",
    "Deployment",
    "DeploymentRevision",
    "Endpoint",
    "Event",
    "IdempotencyKey",
    "Job",
    "JobLabel",
    "Json",
    "Lease",
    "LoginCode",
    "Membership",
    "MetricChunk",
    "MetricObject",
    "MetricSegment",
    "MetricSeries",
    "MetricStream",
    "MlflowModel",
    "MlflowModelVersion",
    "MlflowRegisteredModel",
    "MlflowRun",
    "Model",
    "ModelAlias",
    "ModelChange",
    "ModelFile",
    "ModelHold",
    "ModelVersion",
    "Node",
    "NodeFailure",
    "Orphan",
    "PinnedCheckpoint",
    "PlanRecord",
    "PolicyRow",
    "Project",
    "Question",
    "RayJob",
    "RayPackage",
    "Replica",
    "Retention",
    "Secret",
    "ServingReplica",
    "StartForecastRow",
    "Study",
    "TensorBoardLink",
    "Token",
    "Trial",
    "Usage",
    "User",
    "UtcDateTime",
    "VertexEndpoint",
    "VertexLink",
    "VertexRecord",
    "VertexResource",
    "VertexTableRow",
    "Volume",
    "WaitReason",
]
