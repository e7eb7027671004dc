"""The runtime's files, from the runtime image on the engine."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import Final

from core.domain.errors import ExecutorRefused
from executors.containers import labels, paths
from executors.docker.engine import DockerEngine, EngineError
from executors.docker.files import runtime_members
from executors.docker.images import DockerImages

_SOURCE: Final = "trainmaster/runtime-image"
_ABANDONED_AFTER_S: Final = 600.0
_HINT: Final = "build it (see docs/docker.md), or set TRAINMASTER_RUNTIME_IMAGE to one that can be pulled"


class RuntimeFiles:
    """Safe for many threads. The files are read once for each version of the image, through a container that never
    runs.
    """

    def __init__(self, engine: DockerEngine, images: DockerImages, image: str, instance: str) -> None:
        self._engine = engine
        self._images = images
        self._image = image
        self._instance = instance
        self._lock = threading.Lock()
        self._read: tuple[str, bytes] | None = None

    def members(self) -> bytes:
        """Members of a tar archive, without its end.

        Raises:
            ExecutorTryAgain: the image is being pulled.
            ExecutorRefused: there is no such image, or it is none of ours.
        """
        try:
            image = self._images.find(self._image).id
        except ExecutorRefused as error:
            raise ExecutorRefused(
                f"The platform's runtime image is missing; the administrator must {_HINT}: {error.sentence}"
            ) from error
        with self._lock:
            if self._read is None or self._read[0] != image:
                self._read = (image, self._fetch(image))
            return self._read[1]

    def _fetch(self, image: str) -> bytes:
        self._tidy()
        # Without labels of an attempt: a sweep passes it by.
        body = {
            "Image": image,
            "Entrypoint": ["none"],
            "Labels": {labels.INSTANCE: self._instance, _SOURCE: image},
            "HostConfig": {"NetworkMode": "none"},
        }
        container = self._engine.create_container(body, f"{self._instance}-runtime-{secrets.token_hex(6)}")
        try:
            archive = self._engine.get(container, paths.RUNTIME)
        finally:
            with contextlib.suppress(EngineError):
                self._engine.remove_container(container)
        if archive is None:
            raise ExecutorRefused(f"Image {self._image} is no runtime image: it has no {paths.RUNTIME}; {_HINT}.")
        return runtime_members(archive)

    def _tidy(self) -> None:
        """Remove what a process left that died while it was here."""
        oldest = time.time() - _ABANDONED_AFTER_S  # noqa: TID251 - compared with the engine's clock
        for found in self._engine.containers({labels.INSTANCE: self._instance}):
            if _SOURCE in found["Labels"] and found["Created"] < oldest:
                with contextlib.suppress(EngineError):
                    self._engine.remove_container(found["Id"])
