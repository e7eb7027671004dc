"""Where trained models would be registered."""

from __future__ import annotations

from typing import Protocol

from api.vertex.answers import NotServed
from api.vertex.proto import Message


class ModelRegistry(Protocol):
    """What training pipelines need of a registry of models."""

    def accept(self, upload: Message) -> None:
        """Check a pipeline's ``modelToUpload`` when it is created. Raises ``InvalidRequest`` or ``NotServed``."""
        ...


class NoRegistry:
    """There is none yet: said when the pipeline is created, not after hours of training."""

    def accept(self, upload: Message) -> None:
        raise NotServed(
            f"{upload.path}: models are not registered by this platform yet. Leave model_display_name and the serving container "
            "out; what the script writes to AIP_MODEL_DIR lies in the base output directory, under model/."
        )
