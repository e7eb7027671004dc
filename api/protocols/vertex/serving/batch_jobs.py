"""``projects.locations.batchPredictionJobs`` over our own batch predictions.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.batchPredictionJobs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from trainmaster.wire.serving import BatchPredictRequest

from api.app.unit_of_work import AppContext
from api.endpoints import service
from api.protocols.gcs.buckets import open_uri
from api.protocols.kit.errors import NotServed, parse_request
from api.protocols.kit.json_values import display_name, own_labels, slug
from api.protocols.kit.vertex_table import table_of
from api.protocols.vertex.names import VertexCall
from api.protocols.vertex.proto import Message
from api.protocols.vertex.serving import models
from api.protocols.vertex.serving.containers import read_batch, read_container, server_of
from api.protocols.vertex.training import custom_jobs, jobs
from api.protocols.vertex.training.jobs import check_placement
from core.domain.errors import InvalidRequest
from core.domain.jobs.states import JobState

COLLECTION: Final = "batchPredictionJobs"
_SERVED: Final = {
    "displayName",
    "labels",
    "model",
    "modelVersionId",
    "inputConfig",
    "instanceConfig",
    "outputConfig",
    "dedicatedResources",
    "manualBatchTuningParameters",
    "disableContainerLogging",
    "outputInfo",
    "partialFailures",
    "resourcesConsumed",
    "completionStats",
    *custom_jobs.JOB_OUTPUT,
}
_ABSENT: Final = {
    "modelParameters": "parameters of a model are",
    "unmanagedContainerModel": "models that are in no registry are",
    "generateExplanation": "explanations are",
    "explanationSpec": "explanations are",
    "serviceAccount": "service accounts are",
    "modelMonitoringConfig": "monitoring of models is",
    "modelMonitoringStatsAnomalies": "monitoring of models is",
    "modelMonitoringStatus": "monitoring of models is",
}
_NO_SOURCE: Final = {
    "bigquerySource": "BigQuery is",
    "vertexMultimodalDatasetSource": "managed datasets are",
}
_NO_DESTINATION: Final = {
    "bigqueryDestination": "BigQuery is",
    "vertexMultimodalDatasetDestination": "managed datasets are",
}
_NO_FIELDS: Final = {
    "keyField": "keys of instances are",
    "includedFields": "a choice of an instance's fields is",
    "excludedFields": "a choice of an instance's fields is",
}
_Format = Literal["jsonl", "csv"]


def create(call: VertexCall, raw: Any) -> str:
    """The id of a new job. Raises as ``custom_jobs.create``."""
    call.demand_member("member", verb="batchPredictionJobs.create")
    message = Message(raw, "batch_prediction_job")
    message.refuse_unknown_fields(_SERVED, absent=_ABSENT)
    common = jobs.read_common(message)
    table = table_of(call.context)
    resources = read_batch(message, table, call.parent.location)
    source = _read_source(call, message)
    prefix = _read_destination(message)
    tuning = message.part("manualBatchTuningParameters", {"batchSize"})
    with call.context.read() as work:
        member = call.member_of(work.session, "member", verb="batchPredictionJobs.create")
        model, version = models.find_named(work.session, call, message, "model")
        at = work.now.strftime("%Y-%m-%dT%H-%M-%S-%f")
    container = read_container(Message(version.registration.get(models.KEY, {}), "model"))
    server = server_of(container, table, is_plain=call.context.settings.executor == "process")
    if server.container is not None:
        raise NotServed(
            f"{message.at('model')}: batch predictions by a container of one's own are not served by this platform; "
            "its own server does them, for models that were uploaded with one of Google's pre-built containers."
        )
    folder = f"{prefix.rstrip('/')}/prediction-{slug(models.display_name_of(model, version))}-{at}"
    where = message.at("outputConfig")
    fields: dict[str, Any] = {
        "name": display_name(common.display_name),
        "model": f"{model.name}@{version.number}",
        "framework": server.framework,
        "trust_code": server.is_trusted,
        "input": source.location,
        "format": source.format,
        "csv_rows": source.csv_rows,
        "output": _location(call, folder, where, writes=True),
        "replicas": resources.replicas,
        "resources": resources.requested,
        "priority": resources.priority,
        "labels": own_labels(common.labels),
        **({"batch_size": tuning.whole("batchSize")} if tuning.has("batchSize") else {}),
    }
    submission = service.check_batch(
        call.context, call.caller, member, parse_request(BatchPredictRequest, fields, message.path)
    )
    check_placement(call, submission)
    stored_fields = (
        "inputConfig",
        "instanceConfig",
        "outputConfig",
        "dedicatedResources",
        "manualBatchTuningParameters",
    )
    body = {
        "model": call.parent.name_of(models.COLLECTION, model.id),
        "modelVersionId": str(version.number),
        **{name: message.raw(name) for name in stored_fields if message.has(name)},
        "outputInfo": {"gcsOutputDirectory": folder},
    }
    return jobs.submit_resources(call, submission, common, {COLLECTION: body})


def view(context: AppContext, resource: jobs.JobResource) -> dict[str, Any]:
    del context
    shown = {**jobs.status_of(resource, "JOB_STATE_"), **resource.row.body}
    if JobState(resource.job.state) is not JobState.SUCCEEDED:
        del shown["outputInfo"]
    return shown


@dataclass(frozen=True, slots=True)
class _Source:
    """``location``: volume/path of a file or a folder. ``csv_rows``: how a CSV row becomes an instance."""

    location: str
    format: _Format
    csv_rows: Literal["array", "object"]


def _read_source(call: VertexCall, message: Message) -> _Source:
    config = message.required("inputConfig")
    config.refuse_unknown_fields({"instancesFormat", "gcsSource"}, absent=_NO_SOURCE)
    kind = _format(config, "instancesFormat", ("jsonl", "csv"))
    uris = config.part("gcsSource", {"uris"}).texts("uris")
    where = config.at("gcsSource")
    if len(uris) != 1:
        raise InvalidRequest(
            f"{where}.uris: write one file, or a folder as gs://bucket/folder/*, not {len(uris)} of them.", field=where
        )
    uri = uris[0].removesuffix("*") if uris[0].endswith("/*") else uris[0]
    if "*" in uri:
        raise NotServed(
            f"{where}.uris: patterns but gs://bucket/folder/* are not served by this platform: '{uri[:200]}'."
        )
    instance = message.part("instanceConfig", {"instanceType"}, _NO_FIELDS)
    if instance.text("instanceType", 20) not in ("", "array", "object"):
        raise instance.fault("instanceType", "must be array or object.")
    # Vertex AI's default for CSV rows is an array.
    rows: Literal["array", "object"] = "object" if instance.text("instanceType") == "object" else "array"
    return _Source(_location(call, uri, where), kind, rows)


def _read_destination(message: Message) -> str:
    """The URI below which the job creates its output folder."""
    config = message.required("outputConfig")
    config.refuse_unknown_fields({"predictionsFormat", "gcsDestination"}, absent=_NO_DESTINATION)
    _format(config, "predictionsFormat", ("jsonl",))
    bucket = config.part("gcsDestination", {"outputUriPrefix"})
    if not bucket.has("outputUriPrefix"):
        raise bucket.missing("outputUriPrefix")
    return bucket.text("outputUriPrefix", 2_000)


def _format(config: Message, name: str, served: tuple[_Format, ...]) -> _Format:
    value = config.text(name, 100)
    if not value:
        raise config.missing(name)
    format_name: _Format | None = next((known for known in served if known == value), None)
    if format_name is None:
        raise NotServed(
            f"{config.at(name)}: the format '{value}' is not served by this platform; {' and '.join(served)} "
            f"{'are' if len(served) > 1 else 'is'}."
        )
    return format_name


def _location(call: VertexCall, uri: str, where: str, *, writes: bool = False) -> str:
    """volume/path of a ``gs://`` URI. Raises ``InvalidRequest``, ``NotFound`` or ``Forbidden``."""
    bucket, names = open_uri(call.context, call.caller, uri, where, writes=writes)
    if not names:
        raise InvalidRequest(f"{where}: '{uri[:200]}' names a bucket alone.", field=where)
    return bucket.location(names)
