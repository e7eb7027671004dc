"""``models.upload``: files in a bucket become a version of a model in the registry.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.models/upload
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import select

from api.models.access import by_of
from api.protocols.gcs.buckets import not_found_at, open_uri
from api.protocols.kit.errors import NotServed
from api.protocols.vertex.long_running import (
    CANCELLED,
    FAILED_PRECONDITION,
    error_status,
    operation_metadata,
    operation_not_found,
    operation_view,
    pack_any,
)
from api.protocols.vertex.names import Parent, VertexCall
from api.protocols.vertex.proto import Message
from api.protocols.vertex.serving import models
from api.quotas.storage import demand_storage
from core.db.repositories.storage_usage import add_bytes
from core.db.tables import Model, ModelVersion
from core.domain.errors import Conflict, InvalidRequest, NotFound
from core.domain.model_versions import VersionState
from core.registry import versions
from core.registry.sources import UploadedSource, find_below
from core.storage.registry import demand_room
from core.storage.tree import Tree
from core.storage.volumes import UPLOADS, is_at_or_below, tree_of

OPERATION: Final = "upload"
_NAME: Final = 63


def upload(call: VertexCall, raw: Any) -> dict[str, Any]:
    """An operation, done when the files are copied.

    Raises:
        InvalidRequest, NotServed: an invalid request.
        NotFound, Forbidden: the files, or the parent model.
        Conflict: a model with this id exists.
        StorageQuotaExceeded: the project's quota has no room for the files.
    """
    call.demand_member("member", verb="models.upload")
    message = Message(raw, "upload_model_request")
    message.refuse_unknown_fields(
        {"parent", "parentModel", "modelId", "model"}, absent={"serviceAccount": "service accounts are"}
    )
    model_message = message.required("model")
    requested = models.read_upload(
        model_message,
        model_id=message.text("modelId", _NAME),
        parent=message.text("parentModel", 1_000),
        where=message.path,
    )
    if not model_message.has("containerSpec"):
        raise model_message.fault("containerSpec", "Required field is not set: what is to serve the model.")
    uploaded, size_bytes = _find_files(call, model_message)
    with call.context.write() as work:
        member = call.member_of(work.session, "member", verb="models.upload")
        demand_storage(work.session, member.project_id, size_bytes)
        add_bytes(work.session, member.project_id, size_bytes, work.now)
        name, metadata = models.place_of(work.session, member.project_id, requested)
        version = versions.register_upload(
            work.session,
            work.now,
            member.project_id,
            name,
            by_of(call.caller),
            uploaded,
            volume=call.context.settings.default_volume,
            metadata=metadata,
        )
        models.store_fields(work, version, requested)
        return view_of(call.parent, version)


def poll_upload(call: VertexCall, model_id: str, number: int) -> dict[str, Any]:
    """The current state of the operation. Raises ``NotFound`` if this version was not uploaded."""
    with call.context.read() as work:
        member = call.member_of(work.session, "viewer", verb="models.get")
        model = work.session.get(Model, model_id)
        version = None
        if model is not None and model.project_id == member.project_id:
            # Includes deleted versions: a cancelled upload reports so.
            query = select(ModelVersion).where(ModelVersion.model_id == model.id, ModelVersion.number == number)
            version = work.session.scalars(query).one_or_none()
        if version is None or version.source["kind"] != UploadedSource.KIND:
            raise operation_not_found(call.parent.name_of(models.COLLECTION, model_id), f"{OPERATION}-{number}")
        return view_of(call.parent, version)


def view_of(parent: Parent, version: ModelVersion) -> dict[str, Any]:
    name = parent.name_of(models.COLLECTION, version.model_id)
    response = error = None
    if version.ready_at is not None:  # even if it was deleted since
        response = pack_any("UploadModelResponse", model=name, modelVersionId=str(version.number))
    elif version.state == VersionState.FAILED:
        error = error_status(FAILED_PRECONDITION, f"The model was not registered: {version.reason}")
    elif version.state == VersionState.DELETING:
        message = "The upload was cancelled: the version was deleted before it was registered."
        error = error_status(CANCELLED, message)
    return operation_view(
        f"{name}/operations/{OPERATION}-{version.number}",
        metadata=operation_metadata("UploadModel", version),
        response=response,
        error=error,
    )


def _find_files(call: VertexCall, model: Message) -> tuple[UploadedSource, int]:
    """The model's location and size in bytes, after a check that it has files that may be registered."""
    where, uri = model.at("artifactUri"), model.text("artifactUri", 4_096)
    if not uri:
        raise NotServed(
            f"{where}: a model without files of its own is not served by this platform; name a folder of a bucket "
            "with at least one file."
        )
    with not_found_at(where, uri):
        bucket, names = open_uri(call.context, call.caller, uri, where)
        if not names or names[0] == UPLOADS:
            raise InvalidRequest(f"{where}: '{uri[:200]}' names no folder of its bucket.", field=where)
        path = "/".join(names)
        bucket.locate(path)  # checks access
        base = bucket.base
        if bucket.is_shared:
            base, path = names[0], "/".join(names[1:])
        elif bucket.within is not None:
            base = next(folder for folder in bucket.within if is_at_or_below(path, folder))
            path = path.removeprefix(base).lstrip("/")
        source = UploadedSource(bucket.volume, base, path)
        files = find_below(_top(bucket.top, base), source.path, limit_bytes=call.context.settings.model_limit_bytes)
    registry_volume = call.context.settings.default_volume
    room = call.context.volumes.find(registry_volume, call.context.clock())
    if room is None or room.root is None or room.is_read_only:
        raise Conflict(
            f"The registry keeps its files on volume {registry_volume!r}, which is not registered, "
            "read-only, or not seen by the control plane; an admin can change that."
        )
    demand_room(tree_of(room), files.size_bytes)
    return source, files.size_bytes


def _top(volume: Tree, base: str) -> Tree:
    if base and volume.is_link(base):
        raise NotFound("The bucket is a link, and is not followed.")
    return volume.below(base)
