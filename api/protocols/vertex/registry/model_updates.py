"""``models.patch``: updates of a model, or of one version.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.models/patch

``models/<id>`` means the model, and so does ``models/<id>@-``; ``models/<id>@2`` means the version. One request changes
one of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.app.unit_of_work import UnitOfWork
from api.protocols.vertex.names import VertexCall
from api.protocols.vertex.proto import Message, snake
from api.protocols.vertex.registry import models
from api.protocols.vertex.training import jobs
from core.db.repositories import models as rows
from core.db.tables import Model, ModelVersion
from core.domain.errors import Conflict, InvalidRequest

_OF_MODEL: Final = ("displayName", "description", "labels")
_OF_VERSION: Final = ("versionDescription", "labels")
_DESCRIPTION: Final = 10_000


def update(call: VertexCall, resource_id: str, raw: Any, update_mask: str) -> dict[str, Any]:
    """The updated model. Fields outside the mask stay, even if sent: clients send the whole resource.

    Raises:
        InvalidRequest: the mask is empty, or names an immutable field.
        NotServed: it names a field that this platform does not have.
        Conflict: it names a version's field for a model, or a model's field for a version.
        NotFound, Forbidden
    """
    message = Message(raw, "model")
    message.refuse_unknown_fields(models.SERVED, absent=models.ABSENT)
    model_id, _, version_ref = resource_id.removesuffix("@-").partition("@")
    named = _named(update_mask, is_version=bool(version_ref))
    common = jobs.read_common(Message({**raw, "displayName": message.raw("displayName") or "-"}, message.path))
    if "displayName" in named:
        jobs.read_common(message)
    texts = {name: message.text(name, _DESCRIPTION) for name in ("description", "versionDescription")}
    ref = f"{model_id}@{version_ref}" if version_ref else model_id
    with call.context.write() as work:
        row, _ = models.find(work.session, call, ref, "member", verb="models.update")
        rows.lock_model(work.session, row.id)
        model, version = models.find(work.session, call, ref, "member", verb="models.update")
        if version_ref:
            _change_version(version, named, texts["versionDescription"], common.labels)
        else:
            _change_model(work, model, version, named, {**texts, "displayName": common.display_name}, common.labels)
        model.updated_at = version.updated_at = work.now
        work.session.flush()
        return models.view(work.session, call.parent, model, version, is_version=bool(version_ref))


def _named(update_mask: str, *, is_version: bool) -> set[str]:
    """The fields that the mask names, in camelCase."""
    mask = Message.of_mask(update_mask)
    mask.refuse_unknown_fields(models.SERVED, absent=models.ABSENT)
    named = {name for name in models.SERVED if name in mask}
    if not named:
        raise InvalidRequest(
            f"update_mask: Required field is not set: name what is to change, of a model {_listed(_OF_MODEL)}, of a "
            f"version {_listed(_OF_VERSION)}.",
            field="update_mask",
        )
    may, others = (_OF_VERSION, _OF_MODEL) if is_version else (_OF_MODEL, _OF_VERSION)
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
    for version in work.session.scalars(rows.versions_of(model.id)):
        version.registration = {
            **version.registration,
            models.CHANGED: {**version.registration.get(models.CHANGED, {}), **changed},
        }


def _change_version(version: ModelVersion, named: set[str], description: str, labels: dict[str, str]) -> None:
    if "labels" in named:
        version.labels = labels
    if "versionDescription" in named:
        version.description = description


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(snake(name) for name in names)
