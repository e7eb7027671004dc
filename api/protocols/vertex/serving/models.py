"""``projects.locations.models`` over the model registry: models of training pipelines, and uploaded ones.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.models

A model's id is the registry's; ``models/<id>@2`` is a version, by number or alias. Fields that only Vertex AI has
(display name, serving container) are stored with the version.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session, object_session
from trainmaster.wire.models import Alias, AliasRequest, ModelName

from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import Caller, ProjectAccess, Role
from api.models import service
from api.models.access import ModelAccess, by_of
from api.protocols.kit.errors import NotServed, mistakes_of
from api.protocols.kit.json_values import slug, timestamp
from api.protocols.vertex.filters import field_reader, parse_filter
from api.protocols.vertex.long_running import deletion_view, operation_not_found
from api.protocols.vertex.names import Parent, VertexCall
from api.protocols.vertex.paging import Keyset, ListQuery, list_page, read_order
from api.protocols.vertex.proto import OUTPUT_ONLY, Message, snake
from api.protocols.vertex.serving.containers import read_container
from api.protocols.vertex.training import jobs
from core.db.engine import UntypedRow
from core.db.repositories import models
from core.db.tables import Job, Model, ModelVersion
from core.domain.errors import Conflict, InvalidRequest, NotFound
from core.domain.model_versions import VersionState
from core.registry import versions
from core.registry.sources import SourceRequest
from core.registry.versions import VersionMetadata
from core.wakeups import TOPIC_MODELS

COLLECTION: Final = "models"
KEY: Final = "vertex"  # in a version's registration
CHANGED: Final = "vertex_changed"  # next to it: later changes of the whole model
DEFAULT: Final = "default"  # the alias that is used if none is given
_STORED_FIELDS: Final = (
    "displayName",
    "description",
    "versionDescription",
    "containerSpec",
    "predictSchemata",
    "metadata",
    "metadataSchemaUri",
)
# Output-only fields of models; a client may send them back.
_VERSION_OUTPUT: Final = {"versionId", "versionCreateTime", "versionUpdateTime", "trainingPipeline", "deployedModels"}
_SUPPORTED_OUTPUT: Final = {
    f"supported{what}"
    for what in ("ExportFormats", "DeploymentResourcesTypes", "InputStorageFormats", "OutputStorageFormats")
}
_ORIGIN_OUTPUT: Final = {"modelSourceInfo", "originalModelInfo", "metadataArtifact"}
_OUTPUT: Final = OUTPUT_ONLY | _VERSION_OUTPUT | _SUPPORTED_OUTPUT | _ORIGIN_OUTPUT
SERVED: Final = {*_STORED_FIELDS, "labels", "versionAliases", "artifactUri", *_OUTPUT}
ABSENT: Final = {
    "explanationSpec": "explanations are",
    "pipelineJob": "pipelines are",
    "baseModelSource": "base models are",
    "dataStats": "statistics of data are",
    "checkpoints": "checkpoints of a model are (register each as a version)",
    "defaultCheckpointId": "checkpoints of a model are (register each as a version)",
}
_TIMES: Final = {"create_time": Model.created_at, "update_time": Model.updated_at}  # by which lists can be ordered
_NAME: Final = 63  # characters of a model's name
_CHANCE: Final = 3  # bytes that tell models of one display name apart
_MODEL: Final = re.compile(r"(?:projects/[^/]+/locations/[^/]+/models/)?(?P<id>[\w-]+)(?:@[\w-]+)?")
# Fields that ``models.patch`` changes.
_MODEL_UPDATES: Final = ("displayName", "description", "labels")
_VERSION_UPDATES: Final = ("versionDescription", "labels")
_DESCRIPTION: Final = 10_000


@dataclass(frozen=True, slots=True)
class Upload:
    """A model to register. ``parent``: id of the model that gets a new version; empty: a new model. ``is_id``: the
    client chose the name as an id; otherwise it is derived from the display name.
    """

    body: dict[str, Any]
    aliases: tuple[str, ...]
    labels: dict[str, str]
    name: str
    parent: str = ""
    is_id: bool = False
    fields: tuple[str, ...] = field(default=_STORED_FIELDS, repr=False)


def read_upload(message: Message, *, model_id: str, parent: str, where: str = "training_pipeline") -> Upload:
    """Parse the model of a pipeline or an upload. ``where``: the request's message. Raises ``InvalidRequest``,
    ``NotServed``.
    """
    message.refuse_unknown_fields(SERVED, absent=ABSENT)
    read_container(message)
    message.part("predictSchemata", {"instanceSchemaUri", "parametersSchemaUri", "predictionSchemaUri"})
    common = jobs.read_common(message)
    aliases = list(message.texts("versionAliases"))
    for alias in aliases:
        _valid(Alias, alias, message.at("versionAliases"))
    name = model_id or slug(common.display_name)
    _valid(ModelName, name, f"{where}.model_id")
    body = {key: message.raw(key) for key in _STORED_FIELDS if message.has(key)}
    match = _MODEL.fullmatch(parent)
    if parent and match is None:
        raise InvalidRequest(f"{where}.parent_model: {parent[:200]!r} names no model.", field="parent_model")
    above = match["id"] if parent and match is not None else ""
    return Upload(body, tuple(aliases), common.labels, name, above, is_id=bool(model_id))


def _valid(kind: Any, value: str, where: str) -> None:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise InvalidRequest(f"{where}: {value[:100]!r}: {mistakes_of(error)}.", field=where) from None


def register(context: AppContext, work: UnitOfWork, caller: Caller, upload: Upload, job_id: str) -> None:
    """Register the job's model once the job succeeds; call in the transaction that submits the job."""
    job = work.session.get_one(Job, job_id)
    name, metadata = place_of(work.session, job.project_id, upload)
    version = versions.register_from_job(
        work.session,
        work.now,
        job,
        name,
        by_of(caller),
        SourceRequest(),
        volume=context.settings.default_volume,
        metadata=metadata,
        when_done=True,
    )
    store_fields(work, version, upload)


def place_of(session: Session, project_id: str, upload: Upload) -> tuple[str, VersionMetadata]:
    """The name of the model that gets the version, and the version's metadata. Raises ``NotFound``, ``Conflict``."""
    parent = _parent_of(session, project_id, upload)
    name = _free_name(session, project_id, upload) if parent is None else parent.name
    # In Vertex AI the first version of a model always is its default.
    is_first = parent is None or not models.has_versions(session, parent.id)
    aliases = {*upload.aliases, *([DEFAULT] if is_first else [])}
    return name, VersionMetadata(str(upload.body.get("versionDescription", "")), upload.labels, sorted(aliases))


def store_fields(work: UnitOfWork, version: ModelVersion, upload: Upload) -> None:
    """Store the client's fields with the new version."""
    version.registration = {**version.registration, KEY: upload.body}
    work.session.flush()
    work.notify(TOPIC_MODELS)


def _parent_of(session: Session, project_id: str, upload: Upload) -> Model | None:
    """The model that gets a new version; ``None``: a new model. Raises ``NotFound``."""
    if not upload.parent:
        return None
    model = find_row(session, project_id, upload.parent)
    if model is None:
        raise NotFound(f"models {upload.parent} is not found.")
    return model


def _free_name(session: Session, project_id: str, upload: Upload) -> str:
    """An unused name for a new model. Vertex AI's display names need not be unique, our names must be.

    Version numbers of a name continue after its model was deleted, so names that were ever used are avoided: a new
    model starts with version 1, as in Vertex AI.

    Raises:
        Conflict: a model with the client's id exists.
    """
    if upload.is_id:
        known = models.find_model(session, project_id, upload.name)
        # A model without a registered version (its pipeline failed) does not exist for Vertex AI.
        if known is not None and models.newest_ready(session, known.id) is not None:
            raise Conflict(
                f"There is a model {upload.name!r} already; name it as parent_model for its next version.",
                field="model_id",
            )
        return upload.name
    if not models.is_name_used(session, project_id, upload.name):
        return upload.name
    return f"{upload.name[: _NAME - 2 * _CHANCE - 1].rstrip('-')}-{secrets.token_hex(_CHANCE)}"


def find_row(session: Session, project_id: str, model_id: str) -> Model | None:
    """By its id, or by its name (``model_id`` of an upload)."""
    model = session.get(Model, model_id)
    if model is not None and model.project_id == project_id and model.deleted_at is None:
        return model
    return models.find_model(session, project_id, model_id)


def of_pipeline(resource: jobs.JobResource) -> ModelVersion | None:
    """The version that a pipeline's job registers."""
    session = object_session(resource.job)
    if session is None:
        return None
    rows = session.scalars(select(ModelVersion).where(ModelVersion.job_id == resource.job.id).order_by(ModelVersion.id))
    return next((row for row in rows if KEY in row.registration), None)


class Models:
    """See :class:`api.protocols.vertex.collections.Collection`."""

    def create(self, call: VertexCall, raw: Any) -> str:
        del call, raw
        raise NotServed("models.create is not served by this platform, nor there: a model is made by models.upload.")

    def get(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        with call.context.read() as work:
            model, version = find(work.session, call, resource_id, "viewer", verb="models.get")
            return view(work.session, call.parent, model, version, is_version="@" in resource_id)

    def page(self, call: VertexCall, query: ListQuery) -> dict[str, Any]:
        """Models whose first version is not ready yet are not listed."""
        order = _order(query.order_by)
        with call.context.read() as work:
            member = call.member_of(work.session, "viewer", verb="models.list")
            statement = select(Model).where(Model.project_id == member.project_id, Model.deleted_at.is_(None))

            def view_of(row: UntypedRow) -> tuple[dict[str, Any], dict[str, datetime]] | None:
                version = _default(work.session, row[0])
                return (
                    None if version is None else (view(work.session, call.parent, row[0], version), _times_of(row[0]))
                )

            return list_page(work.session, statement, order, query, view_of, collection=COLLECTION)

    def cancel(self, call: VertexCall, resource_id: str) -> None:
        del call, resource_id
        raise NotServed("models:cancel is not served by this platform.")

    def delete(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        """Delete a model with its versions. Aliases do not block this, as they do in our own API."""
        with call.context.write() as work:
            model, _ = find(work.session, call, resource_id, "member", verb="models.delete", is_any=True)
            access = _access(call, model)
            for alias in models.aliases_of(work.session, [model.id])[model.id]:
                service.remove_alias(work, access, alias)
            service.delete_model(work, access, force=False)
        return deletion_view(call.parent.name_of(COLLECTION, resource_id), is_done=True)

    def poll_deletion(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        with call.context.read() as work:
            member = call.member_of(work.session, "member", verb="models.get")
            row = work.session.get(Model, resource_id.partition("@")[0])
        name = call.parent.name_of(COLLECTION, resource_id)
        if row is None or row.project_id != member.project_id or row.deleted_at is None:
            raise operation_not_found(name)
        return deletion_view(name, is_done=True)


def _order(text: str) -> Keyset:
    """By name, which no two models share, or by a time. Raises ``InvalidRequest``, or ``NotServed`` for display names,
    which are not the models' names here.
    """
    field, is_descending = read_order(text, _TIMES, COLLECTION, known=["display_name"])
    if field == "display_name":
        raise NotServed(
            f"order_by: models are not ordered by display_name by this platform; one of {', '.join(_TIMES)} is "
            "served, or leave it out, and order them yourself."
        )
    return Keyset(_TIMES.get(field, Model.name), Model.id, is_descending)


def list_versions(call: VertexCall, resource_id: str, query: ListQuery) -> dict[str, Any]:
    """All ready versions that match the filter, newest first, in one page."""
    test = parse_filter(query.filter)
    with call.context.read() as work:
        model, _ = find(work.session, call, resource_id, "viewer", verb="models.listVersions")
        ready = models.versions_of(model.id).where(ModelVersion.state == VersionState.READY.value)
        rows = work.session.scalars(ready.order_by(ModelVersion.number.desc())).all()
        items = [view(work.session, call.parent, model, row, is_version=True) for row in rows]
        return {COLLECTION: [item for item in items if test(field_reader(item, **_times_of(model)))]}


def merge_aliases(call: VertexCall, resource_id: str, raw: Any) -> dict[str, Any]:
    """Add aliases to a version; aliases with a leading dash are removed."""
    message = Message(raw, "merge_version_aliases")
    message.refuse_unknown_fields({"name", "versionAliases"})
    with call.context.write() as work:
        model, version = find(work.session, call, resource_id, "member", verb="models.mergeVersionAliases")
        access = _access(call, model)
        for text in message.texts("versionAliases"):
            _valid(Alias, text.removeprefix("-"), message.at("versionAliases"))
            own = models.aliases_of(work.session, [model.id])[model.id]
            if not text.startswith("-"):
                service.set_alias(work, access, text, AliasRequest(version=version.number))
            elif text == f"-{DEFAULT}":
                raise Conflict("The default alias is moved to another version, not removed.")
            elif own.get(text[1:]) == version.number:
                service.remove_alias(work, access, text[1:])
        work.session.flush()
        return view(work.session, call.parent, model, version, is_version="@" in resource_id)


def delete_version(call: VertexCall, resource_id: str) -> dict[str, Any]:
    with call.context.write() as work:
        model, version = find(work.session, call, resource_id, "member", verb="models.deleteVersion", is_any=True)
        service.delete_version(work, _access(call, model), str(version.number), force=False)
    return deletion_view(call.parent.name_of(COLLECTION, model.id), is_done=True)


def _access(call: VertexCall, model: Model) -> ModelAccess:
    return ModelAccess(ProjectAccess(call.caller, call.parent.own, "member"), model.name)


def find(
    session: Session, call: VertexCall, resource_id: str, role: Role, *, verb: str, is_any: bool = False
) -> tuple[Model, ModelVersion]:
    """``is_any``: also if no version is ready. Raises ``NotFound`` or ``Forbidden``."""
    member = call.member_of(session, role, verb=verb)
    model_id, _, ref = resource_id.partition("@")
    row = find_row(session, member.project_id, model_id)
    if row is not None:
        version = versions.find_version(session, row, ref) if ref else _default(session, row, is_any=is_any)
        if version is not None and (is_any or version.state == VersionState.READY):
            return row, version
    raise NotFound(f"The Model {call.parent.name_of(COLLECTION, resource_id)} is not found.")


def find_named(session: Session, call: VertexCall, message: Message, field: str) -> tuple[Model, ModelVersion]:
    """The model and version that a message's field names. Raises ``InvalidRequest``, ``NotFound`` or
    ``Forbidden``.
    """
    name = message.text(field, 1_000)
    match = re.fullmatch(r"projects/[^/]+/locations/[^/]+/models/(?P<id>[\w.-]+(?:@[\w-]+)?)", name)
    if match is None:
        raise message.fault(field, f"'{name[:200]}' is no name of a model.")
    return find(session, call, match["id"], "member", verb="models.get")


def display_name_of(model: Model, version: ModelVersion) -> str:
    for registration in (version.registration.get(CHANGED, {}), version.registration.get(KEY, {})):
        if "displayName" in registration:
            return str(registration["displayName"])
    return model.name


def _default(session: Session, model: Model, *, is_any: bool = False) -> ModelVersion | None:
    version = models.find_alias(session, model.id, DEFAULT) or models.newest_ready(session, model.id)
    if version is None and is_any:
        version = session.scalars(models.versions_of(model.id).order_by(ModelVersion.number.desc()).limit(1)).first()
    return version


def view(
    session: Session, parent: Parent, model: Model, version: ModelVersion, *, is_version: bool = False
) -> dict[str, Any]:
    """``is_version``: the version was requested by its own name, which is then the resource name."""
    aliases = models.aliases_of(session, [model.id])[model.id]
    registered: dict[str, Any] = version.registration.get(KEY, {})
    changed: dict[str, Any] = version.registration.get(CHANGED, {})
    is_trained = registered and version.job_id is not None
    pipeline = {"trainingPipeline": parent.name_of("trainingPipelines", str(version.job_id))} if is_trained else {}
    descriptions = {
        "description": model.description or changed.get("description", registered.get("description", "")),
        "versionDescription": version.description,
    }
    labels = {**model.labels, **version.labels}
    return {
        **{name: value for name, value in registered.items() if name not in descriptions},
        **{name: value for name, value in descriptions.items() if value},
        "displayName": display_name_of(model, version),
        "name": parent.name_of(COLLECTION, f"{model.id}@{version.number}" if is_version else model.id),
        "versionId": str(version.number),
        "versionAliases": [name for name, number in aliases.items() if number == version.number],
        "artifactUri": f"gs://{version.volume}/{version.path}",
        "createTime": timestamp(model.created_at),
        "updateTime": timestamp(model.updated_at),
        "versionCreateTime": timestamp(version.created_at),
        "versionUpdateTime": timestamp(version.updated_at),
        "etag": version.digest or "",
        "supportedDeploymentResourcesTypes": ["DEDICATED_RESOURCES"],
        "supportedInputStorageFormats": ["jsonl", "csv"],
        "supportedOutputStorageFormats": ["jsonl"],
        **({"labels": labels} if labels else {}),
        **pipeline,
    }


def _times_of(row: Model) -> dict[str, datetime]:
    return {"create_time": row.created_at, "update_time": row.updated_at}


def update(call: VertexCall, resource_id: str, raw: Any, update_mask: str) -> dict[str, Any]:
    """``models.patch``: the updated model. Fields outside the mask stay, even if sent: clients send the whole resource.

    ``models/<id>`` and ``models/<id>@-`` are the model, ``models/<id>@2`` is the version.

    Raises:
        InvalidRequest: the mask is empty, or names an immutable field.
        NotServed: it names a field that this platform does not have.
        Conflict: it names a version's field for a model, or a model's field for a version.
        NotFound, Forbidden
    """
    message = Message(raw, "model")
    message.refuse_unknown_fields(SERVED, absent=ABSENT)
    model_id, _, version_ref = resource_id.removesuffix("@-").partition("@")
    named = _named(update_mask, is_version=bool(version_ref))
    common = jobs.read_common(Message({**raw, "displayName": message.raw("displayName") or "-"}, message.path))
    if "displayName" in named:
        jobs.read_common(message)
    texts = {name: message.text(name, _DESCRIPTION) for name in ("description", "versionDescription")}
    ref = f"{model_id}@{version_ref}" if version_ref else model_id
    with call.context.write() as work:
        row, _ = find(work.session, call, ref, "member", verb="models.update")
        models.lock_model(work.session, row.id)
        model, version = find(work.session, call, ref, "member", verb="models.update")
        if version_ref:
            _change_version(version, named, texts["versionDescription"], common.labels)
        else:
            _change_model(work, model, version, named, {**texts, "displayName": common.display_name}, common.labels)
        model.updated_at = version.updated_at = work.now
        work.session.flush()
        return view(work.session, call.parent, model, version, is_version=bool(version_ref))


def _named(update_mask: str, *, is_version: bool) -> set[str]:
    """The fields that the mask names, in camelCase."""
    mask = Message.of_mask(update_mask)
    mask.refuse_unknown_fields(SERVED, absent=ABSENT)
    named = {name for name in SERVED if name in mask}
    if not named:
        raise InvalidRequest(
            f"update_mask: Required field is not set: name what is to change, of a model "
            f"{_listed(_MODEL_UPDATES)}, of a version {_listed(_VERSION_UPDATES)}.",
            field="update_mask",
        )
    may, others = (_VERSION_UPDATES, _MODEL_UPDATES) if is_version else (_MODEL_UPDATES, _VERSION_UPDATES)
    for name in sorted(named.difference(may)):
        if name in others:
            what, other = ("version", "models/<id>") if is_version else ("model", "models/<id>@<version>")
            raise Conflict(f"update_mask: {snake(name)} is no field of a {what}; update {other} for it.")
        raise InvalidRequest(
            f"update_mask: {snake(name)} never changes; what may is {_listed(may)}.", field="update_mask"
        )
    return named


def _change_model(
    work: UnitOfWork,
    model: Model,
    default: ModelVersion,
    named: set[str],
    texts: Mapping[str, str],
    labels: dict[str, str],
) -> None:
    """Labels are also set on the default version: both are merged in the view, so its old labels would stay visible."""
    if "labels" in named:
        model.labels = default.labels = labels
    if "description" in named:
        model.description = texts["description"]
    changed = {"displayName": texts["displayName"]} if "displayName" in named else {}
    if "description" in named and not model.description:
        changed["description"] = ""
    for version in work.session.scalars(models.versions_of(model.id)):
        version.registration = {
            **version.registration,
            CHANGED: {**version.registration.get(CHANGED, {}), **changed},
        }


def _change_version(version: ModelVersion, named: set[str], description: str, labels: dict[str, str]) -> None:
    if "labels" in named:
        version.labels = labels
    if "versionDescription" in named:
        version.description = description


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(snake(name) for name in names)
