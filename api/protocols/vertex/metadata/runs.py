"""Metadata stores with their record kinds, and experiment runs, whose metrics are copied to the job that logs them.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.protocols.kit.errors import AlreadyExists
from api.protocols.kit.json_values import milliseconds
from api.protocols.vertex.proto import Message
from api.protocols.vertex.records import service
from api.protocols.vertex.records.kinds import SHOWN, RecordKind, enum, struct, text
from api.protocols.vertex.records.principals import RecordTransaction
from core.db.repositories.events import append_event
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.repositories.vertex_records import find_record
from core.db.tables import VertexRecord
from core.domain.metrics import Points

_SCHEMA: Final = {"schemaTitle": text(256), "schemaVersion": text(100)}
_FIXED: Final = frozenset(_SCHEMA)
_NODES: Final = 50_000  # of each kind in a store

STORE: Final = RecordKind(
    "metadataStores",
    "metadata_store",
    {"description": text(10_000)},
    limit=100,
    output=frozenset({"state"}),
    absent={"dataplexConfig": "Dataplex is"},
    message="MetadataStore",
    is_slow=True,
)
CONTEXT: Final = RecordKind(
    "contexts",
    "context",
    {**SHOWN, **_SCHEMA, "metadata": struct},
    limit=_NODES,
    fixed=_FIXED,
    output=frozenset({"parentContexts"}),
)
ARTIFACT: Final = RecordKind(
    "artifacts",
    "artifact",
    {
        **SHOWN,
        **_SCHEMA,
        "uri": text(4_000),
        "state": enum({0: "STATE_UNSPECIFIED", 1: "PENDING", 2: "LIVE"}),
        "metadata": struct,
    },
    limit=_NODES,
    fixed=_FIXED,
)
EXECUTION: Final = RecordKind(
    "executions",
    "execution",
    {
        **SHOWN,
        **_SCHEMA,
        "state": enum(
            {
                0: "STATE_UNSPECIFIED",
                1: "NEW",
                2: "RUNNING",
                3: "COMPLETE",
                4: "FAILED",
                5: "CACHED",
                6: "CANCELLED",
            }
        ),
        "metadata": struct,
    },
    limit=_NODES,
    fixed=_FIXED,
)


EXPERIMENT: Final = "system.Experiment"
RUN: Final = "system.ExperimentRun"
_DEFAULT_STORE: Final = "metadataStores/default"
_METRICS: Final = "_metrics"  # in a run's metadata, as the SDK keeps them


def create_store(tx: RecordTransaction, kind: RecordKind, path: str, message: Message) -> VertexRecord:
    """Create a store; creating the default store again returns it.

    Programs that start at the same time all find no default store and create it. Over REST their client cannot tell an
    existing name from other conflicts, and would fail.
    """
    if path != _DEFAULT_STORE:
        return service.create(tx, kind, path, message)
    known = find_record(tx.session, tx.scope, path)
    if known is not None:
        return known
    try:
        return service.create(tx, kind, path, message)
    except AlreadyExists:  # another program created it since
        return service.find(tx, kind, path)


def create(tx: RecordTransaction, kind: RecordKind, path: str, message: Message) -> VertexRecord:
    record = service.create(tx, kind, path, message)
    if record.schema_title == RUN:
        _record_run_started(tx, record.name)
    return record


def change(tx: RecordTransaction, kind: RecordKind, path: str, message: Message, mask: str) -> VertexRecord:
    if tx.attempt is None:
        return service.change(tx, kind, path, message, mask)
    before = _metrics_of(service.find(tx, kind, path, locks=True))
    record = service.change(tx, kind, path, message, mask)
    if record.schema_title == RUN:
        now_ms = milliseconds(tx.work.now)
        new = {name: value for name, value in _metrics_of(record).items() if before.get(name) != value}
        # They belong to the run as a whole: all at step 0.
        copy_metrics(tx, record.name, {name: Points([0], [now_ms], [value]) for name, value in new.items()})
    return record


def _metrics_of(record: VertexRecord) -> dict[str, float]:
    metadata: Any = record.body.get("metadata", {})
    metrics = metadata.get(_METRICS, {})
    if not isinstance(metrics, Mapping):
        return {}
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _record_run_started(tx: RecordTransaction, run: str) -> None:
    """Append an event to the job's history; nothing for runs that users create."""
    if tx.attempt is None:
        return
    append_event(
        tx.session,
        at=tx.work.now,
        kind="experiment.run_started",
        actor="script",
        project_id=tx.scope.project_id,
        job_id=tx.attempt.job_id,
        attempt_id=tx.attempt.attempt_id,
        reason=f"The script logs to the run {run} of Vertex AI's experiments.",
        data={"run": run, "location": tx.scope.location},
    )


def copy_metrics(tx: RecordTransaction, run: str, metrics: Mapping[str, Points]) -> None:
    """Add points to the series ``<run>/<metric>`` of the job's main replica: the token does not identify a replica.

    Points beyond a job's limits stay with the run alone.
    """
    if tx.attempt is None or not metrics:
        return
    role = next(iter(tx.attempt.roles))
    key = StreamKey(tx.attempt.job_id, tx.attempt.number, role, 0)
    add_metrics(tx.session, key, {f"{run}/{name}": points for name, points in metrics.items()}, now=tx.work.now)
