"""Checks before a deployment or a batch prediction: the model's files, its serving image, and the output."""

from __future__ import annotations

import io
import json
import os
import zipfile
from typing import Any, Final

from trainmaster.wire.serving import BatchPredictRequest

from api.app.unit_of_work import AppContext
from api.jobs.locations import JobOutput
from core.domain.errors import Conflict, InvalidRequest, TrainmasterError
from core.domain.serving.files import SAVED_MODEL, refusal
from core.storage.tree import Tree
from core.storage.volumes import split_location

# Of a zip archive's directory, which zipfile reads at once. A model with ten thousand tensors has half of this.
_DIRECTORY_LIMIT_BYTES: Final = 2 * 2**20


def check_model_files(
    context: AppContext, location: str, file: str, *, label: str, framework: str, trusts_code: bool
) -> None:
    """Refuse a model that the platform's own server would refuse at once. Does nothing if its volume cannot be read
    here.

    The caller's right to read the location must have been checked.

    Args:
        context: of the application.
        location: volume/path of the model's folder.
        file: the model's file in the folder; may be empty.
        label: the user's name of the folder, for the error message.
        framework: as stated in the request, or ``auto``.
        trusts_code: the request allows formats that can execute code.

    Raises:
        InvalidRequest: with the server's message, and the field to change.
    """
    volume, path = split_location(location, field="model")
    try:
        found_tree = context.confined(volume, path)
        if found_tree is None:
            return
        tree, path = found_tree
        names = tree.names(path)
    except (TrainmasterError, OSError):
        return
    if file and file not in names:
        return
    found = refusal(
        label, names, file=file, framework=framework, trusts_code=trusts_code,
        is_torchscript=lambda name: _is_torchscript(tree, f"{path}/{name}".lstrip("/")),
    )  # fmt: skip
    if found is not None:
        raise InvalidRequest(f"{found.field}: {found.sentence}", field=found.field)


def _is_torchscript(tree: Tree, path: str) -> bool | None:
    """Whether it is a zip archive with code in it; ``None``: it cannot be read, or its directory is too long."""
    try:
        with _LimitedReads(tree.open_file(path)) as stream, zipfile.ZipFile(stream) as archive:
            return any("/code/" in name for name in archive.namelist())
    except zipfile.BadZipFile:
        return False
    except (TrainmasterError, OSError, ValueError, NotImplementedError):
        return None


class _LimitedReads(io.FileIO):
    """A file that refuses to read more at once than the directory of a zip archive."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = os.fstat(self.fileno()).st_size - self.tell() if size is None or size < 0 else size
        if wanted > _DIRECTORY_LIMIT_BYTES:
            raise OSError("the archive's directory is too long")
        return super().read(wanted) or b""


_TENSORFLOW: Final = "tensorflow"


def own_image(context: AppContext, location: str, file: str, framework: str) -> str | None:
    """The platform's serving image for a model: TensorFlow has an image of its own, for its size.

    ``None`` on a platform of plain processes, which has no images.

    Args:
        context: of the application.
        location: volume/path of the model's folder.
        file: the model's file in the folder; may be empty.
        framework: as stated in the request. ``auto``: the folder is searched for a SavedModel, if it can be read here.
    """
    settings = context.settings
    if settings.executor == "process":
        return None
    is_tensorflow = framework == _TENSORFLOW or (framework == "auto" and _is_saved_model(context, location, file))
    return settings.serving_image_for_tensorflow if is_tensorflow else settings.serving_image


def _is_saved_model(context: AppContext, location: str, file: str) -> bool:
    if file:
        return file == SAVED_MODEL
    volume, path = split_location(location, field="model")
    tree = context.tree_of(volume)
    if tree is None:
        return False
    try:
        return not tree.stat(f"{path}/{SAVED_MODEL}".lstrip("/")).is_dir
    except TrainmasterError:
        return False


_MANIFEST: Final = "batch.json"
_MANIFEST_LIMIT_BYTES: Final = 64 * 2**10
_CONTENT_DIGEST: Final = "content:"  # prefix of a digest that the replicas compute; others are of the registry
_OPTIONS: Final = (("shard_size", "--shard-size"), ("csv_rows", "--csv-rows"))


def demand_own_output(
    context: AppContext, output: JobOutput, body: BatchPredictRequest, model: str, digest: str
) -> None:
    """Check that a batch prediction may resume in its output: ``batch.json`` there names the model and the options.

    The caller's right to write there must have been checked. The replicas check the manifest, too
    (``trainmaster_serving.batch``): also the instances, and volumes that the control plane cannot read.

    Args:
        context: of the application.
        output: of the job.
        body: the request.
        model: the model's display name.
        digest: of the registry's version; empty for a model on a volume.

    Raises:
        Conflict: the output has predictions of another model, or made with other options.
    """
    manifest = _manifest(context, output)
    made_by = manifest.get("model_digest")
    if not isinstance(made_by, str):
        return
    if made_by != digest and (digest or not made_by.startswith(_CONTENT_DIGEST)):
        raise Conflict(
            f"output: {body.output} has predictions of model {manifest.get('model')!s:.200}, but this is {model}; "
            "choose another output, or delete this one first.",
            field="output",
        )
    for field, option in _OPTIONS:
        own = getattr(body, field)
        if manifest.get(field) != own:
            raise Conflict(
                f"output: {body.output} has predictions made with {option} {manifest.get(field)!s:.50}, not {own}: use "
                "that value to resume, or choose another output.",
                field=field,
            )


def _manifest(context: AppContext, output: JobOutput) -> dict[str, Any]:
    """The manifest in the output; empty if there is none, or if it cannot be read from here."""
    tree = context.tree_of(output.volume)
    if tree is None or not output.path:
        return {}
    try:
        with os.fdopen(tree.below(output.path).open_file(_MANIFEST), "rb") as stream:
            found = json.loads(stream.read(_MANIFEST_LIMIT_BYTES))
    except (TrainmasterError, OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
