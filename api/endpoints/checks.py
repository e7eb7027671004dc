"""Looking at a model's files before a job is started that would only find out that it may not read them."""

from __future__ import annotations

import io
import os
import zipfile
from typing import Final

from api.app.unit_of_work import AppContext
from core.domain.errors import InvalidRequest, TrainmasterError
from core.domain.serving.files import refusal
from core.storage.tree import Tree
from core.storage.volumes import split_location, tree_of

# Of an archive's list of names. That of a model with ten thousand tensors is half as long; zipfile takes all of it at once.
_NAMES_BYTES: Final = 2 * 2**20


def check_model_files(
    context: AppContext, location: str, file: str, *, label: str, framework: str, trusts_code: bool
) -> None:
    """Refuse what the platform's own server would refuse at once. What the control plane does not see is left to the server.

    The caller's right to the place is proved before.

    Args:
        location: volume/path of the model's folder.
        file: the one in it that is meant; may be empty.
        label: what the user called the folder.

    Raises:
        InvalidRequest: with the server's sentence, and the field that would have to be another.
    """
    volume, path = split_location(location, field="model")
    known = context.volumes.find(volume, context.clock())
    if known is None or known.root is None:
        return
    tree = tree_of(known)
    if volume == context.settings.default_volume:  # no link leads out of a project's own folder
        first, _, path = path.partition("/")
        tree = tree.below(first)
    try:
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
    """A zip archive with code in it; ``None``: it cannot be read, or has a longer list of names than is read here."""
    try:
        with _Sparing(tree.open_file(path)) as stream, zipfile.ZipFile(stream) as archive:
            return any("/code/" in name for name in archive.namelist())
    except zipfile.BadZipFile:
        return False
    except (TrainmasterError, OSError, ValueError, NotImplementedError):
        return None


class _Sparing(io.FileIO):
    """A file of which no more than a list of names is read at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = os.fstat(self.fileno()).st_size - self.tell() if size is None or size < 0 else size
        if wanted > _NAMES_BYTES:
            raise OSError("too long to be looked at here")
        return super().read(wanted) or b""
