"""Which of the platform's own serving images a model needs: TensorFlow is in one of its own, for its size."""

from __future__ import annotations

from typing import Final

from api.app.unit_of_work import AppContext
from core.domain.errors import TrainmasterError
from core.domain.serving.files import SAVED_MODEL
from core.storage.volumes import split_location, tree_of

_TENSORFLOW: Final = "tensorflow"


def own_image(context: AppContext, location: str, file: str, framework: str) -> str | None:
    """The image; ``None`` on a platform of plain processes, which has none.

    Args:
        location: volume/path of the model's folder. Where the control plane does not see the volume, what was stated decides.
        file: the one in it that is meant; may be empty.
        framework: as stated, or ``auto``: it is looked for what TensorFlow saves.
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
    known = context.volumes.find(volume, context.clock())
    if known is None or known.root is None:
        return False
    try:
        return not tree_of(known).stat(f"{path}/{SAVED_MODEL}".lstrip("/")).is_dir
    except TrainmasterError:
        return False
