"""Images: there already, or pulled in the background while the control loop goes on; and the runtime image's files."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import structlog

from core.domain.errors import ExecutorError, ExecutorRefused, ExecutorTryAgain
from executors.containers import labels, paths
from executors.docker.engine import DockerEngine, EngineError, EngineObjectMissing
from executors.docker.error_messages import not_pulled
from executors.docker.files import runtime_members

# The call waits this long for a pull: most failures, and pulls of small images, end within it.
_PULL_WAIT_S: Final = 1.0
# A failure is repeated without another pull for this long: the replicas of a gang ask one after another.
_FAILURE_CACHE_S: Final = 10.0
_SOURCE: Final = "trainmaster/runtime-image"
_ABANDONED_AFTER_S: Final = 600.0
_HINT: Final = "build it (see docs/docker.md), or set TRAINMASTER_RUNTIME_IMAGE to one that can be pulled"


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Configuration of an image. ``user`` empty: root."""

    id: str
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    user: str = ""


class DockerImages:
    """Safe for many threads."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._pulls: dict[str, _Pull] = {}

    def find(self, name: str) -> ImageFacts:
        """The image ``name``; a missing one is pulled, a present one is used without a look at the registry.

        Raises:
            ExecutorTryAgain: it is being pulled; the sentence says how far it is.
            ExecutorRefused: it cannot be pulled, and trying again would not help.
        """
        try:
            return _facts(self._engine.image(name))
        except EngineObjectMissing:
            pass
        except EngineError as error:
            raise not_pulled(name, error.message) from error
        pull = self._pull(name)
        pull.ended.wait(_PULL_WAIT_S)
        if pull.failure is not None:
            raise pull.failure
        if not pull.ended.is_set():
            raise ExecutorTryAgain(pull.detail)
        try:
            return _facts(self._engine.image(name))
        except EngineError as error:
            raise ExecutorTryAgain(f"Image {name} was pulled and is gone again; it is tried again.") from error

    def _pull(self, name: str) -> _Pull:
        with self._lock:
            now = time.monotonic()
            self._pulls = {key: pull for key, pull in self._pulls.items() if pull.is_fresh(now)}
            pull = self._pulls.get(name)
            if pull is None:
                pull = self._pulls[name] = _Pull(self._engine, name)
                pull.start()
            return pull


class _Pull:
    """One pull in a thread of its own. ``failure`` is set before ``ended``."""

    def __init__(self, engine: DockerEngine, name: str) -> None:
        self.name = name
        self.detail = f"Pulling image {name}."
        self.ended = threading.Event()
        self.failure: ExecutorError | None = None
        self._engine = engine
        self._layers: dict[str, tuple[int, int]] = {}  # layer -> bytes that came, bytes in all
        self._ended_at = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"pull {self.name}", daemon=True).start()

    def is_fresh(self, now: float) -> bool:
        return not self.ended.is_set() or (self.failure is not None and now - self._ended_at < _FAILURE_CACHE_S)

    def _run(self) -> None:
        log.info("image.pulling", image=self.name)
        try:
            for line in self._engine.pull(_tagged(self.name)):
                if "error" in line:
                    self.failure = not_pulled(self.name, str(line["error"]))
                    break
                self._note(line)
        except ExecutorTryAgain as away:
            self.failure = away
        except EngineError as error:
            self.failure = not_pulled(self.name, error.message)
        except Exception as error:
            log.exception("image.pull_failed", image=self.name)
            self.failure = ExecutorTryAgain(f"Image {self.name} cannot be pulled ({error}); it is tried again.")
        self._ended_at = time.monotonic()
        if self.failure is not None:
            level = log.warning if isinstance(self.failure, ExecutorRefused) else log.info
            level("image.not_pulled", image=self.name, why=self.failure.sentence)
        self.ended.set()

    def _note(self, line: dict[str, Any]) -> None:
        progress = line.get("progressDetail") or {}
        if line.get("status") == "Downloading" and progress.get("total"):
            self._layers[str(line.get("id"))] = (int(progress.get("current") or 0), int(progress["total"]))
        elif line.get("status") in ("Download complete", "Pull complete") and line.get("id") in self._layers:
            total = self._layers[line["id"]][1]
            self._layers[line["id"]] = (total, total)
        else:
            return
        received, total = (sum(numbers) // 10**6 for numbers in zip(*self._layers.values(), strict=True))
        self.detail = f"Pulling image {self.name}: {received} of {total} MB so far."


def _tagged(name: str) -> str:
    """``docker pull`` takes ``latest`` for a name without a tag; the engine would take all tags."""
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


def _facts(data: dict[str, Any]) -> ImageFacts:
    config = data.get("Config") or {}
    return ImageFacts(
        str(data["Id"]),
        tuple(config.get("Entrypoint") or ()),
        tuple(config.get("Cmd") or ()),
        str(config.get("User") or ""),
    )


class RuntimeFiles:
    """The files of the runtime image on the engine, read once for each version of the image, through a container that
    never runs. Safe for many threads.
    """

    def __init__(self, engine: DockerEngine, images: DockerImages, image: str, instance: str) -> None:
        self._engine = engine
        self._images = images
        self._image = image
        self._instance = instance
        self._lock = threading.Lock()
        self._read: tuple[str, bytes] | None = None

    def members(self, *, has_installer: bool = False) -> bytes:
        """Members of a tar archive, without its end. ``has_installer``: with uv, which is too large to stay in memory.

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
                archive = self._fetch(image, paths.RUNTIME)
                if archive is None:
                    raise ExecutorRefused(
                        f"Image {self._image} is no runtime image: it has no {paths.RUNTIME}; {_HINT}."
                    )
                self._read = (image, runtime_members(archive))
            runtime = self._read[1]
        installer = self._fetch(image, paths.INSTALLER) if has_installer else None
        # An older image has none: then the job's image must have uv or pip.
        return runtime if installer is None else runtime + runtime_members(installer)

    def _fetch(self, image: str, folder: str) -> bytes | None:
        """The archive of a folder of the image; ``None``: there is none."""
        self._tidy()
        # Without labels of an attempt: garbage collection passes it by.
        body = {
            "Image": image,
            "Entrypoint": ["none"],
            "Labels": {labels.INSTANCE: self._instance, _SOURCE: image},
            "HostConfig": {"NetworkMode": "none"},
        }
        container = self._engine.create_container(body, f"{self._instance}-runtime-{secrets.token_hex(6)}")
        try:
            return self._engine.get(container, folder)
        finally:
            with contextlib.suppress(EngineError):
                self._engine.remove_container(container)

    def _tidy(self) -> None:
        """Remove what a process left that died while it was here."""
        oldest = time.time() - _ABANDONED_AFTER_S  # noqa: TID251 - compared with the engine's clock
        for container in self._engine.containers({labels.INSTANCE: self._instance}):
            if _SOURCE in container["Labels"] and container["Created"] < oldest:
                with contextlib.suppress(EngineError):
                    self._engine.remove_container(container["Id"])
