"""Metadata stores, and experiment runs, whose metrics are copied to the job that logs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.protocols.kit.errors import AlreadyExists
from api.protocols.vertex.proto import Message
from api.protocols.vertex.records import service
from api.protocols.vertex.records.in_jobs import copy_metrics, record_run_started
from api.protocols.vertex.records.kinds import RecordKind
from api.protocols.vertex.records.principals import RecordTransaction
from core.db.repositories.vertex.records import find_record
from core.db.tables import VertexRecord
from core.domain.metrics.points import Points

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
        record_run_started(tx, record.name)
    return record


def change(tx: RecordTransaction, kind: RecordKind, path: str, message: Message, mask: str) -> VertexRecord:
    if tx.attempt is None:
        return service.change(tx, kind, path, message, mask)
    before = _metrics_of(service.find(tx, kind, path, locks=True))
    record = service.change(tx, kind, path, message, mask)
    if record.schema_title == RUN:
        now_ms = int(tx.work.now.timestamp() * 1000)
        new = {name: value for name, value in _metrics_of(record).items() if before.get(name) != value}
        # They belong to the run as a whole: all at step 0.
        copy_metrics(tx, record.name, {name: Points([0], [now_ms], [value]) for name, value in new.items()})
    return record


def _metrics_of(record: VertexRecord) -> dict[str, float]:
    metadata: Any = record.body.get("metadata", {})
    found = metadata.get(_METRICS, {})
    if not isinstance(found, Mapping):
        return {}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
