"""The driver for one Docker engine.

Its memory is the engine: containers, networks and volumes found by their labels. A replica's container is made under a
temporary name, filled, and then renamed to its own name, which the engine allows once; a container of that name may be
started by any process. A creator that dies on the way leaves a container that the next creator starts, or ``remove``
finds.

An attempt that was removed leaves an empty volume with its name for a day: a ``create`` that comes late looks for it
after it has made its container and before it starts it, and ``remove`` makes it before it looks for containers. So one
of the two sees the other.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from core.domain.errors import AttemptRemoved, ExecutorRefused, ExecutorTryAgain
from core.domain.ids import AttemptId
from core.domain.jobs.layout import PS_PORT, Layout, Ports
from executors.base import Gpu, NodeInfo, Observation, ReplicaKey, ReplicaOrder, newest_generations
from executors.containers import exits, labels, names, order_files, paths
from executors.docker import error_messages, files, nodes, render
from executors.docker.engine import DockerEngine, EngineError, EngineObjectMissing, NameTaken
from executors.docker.events import EngineEvents
from executors.docker.images import DockerImages, ImageFacts, RuntimeFiles
from executors.docker.observe import ContainerObserver
from executors.node_resources import subtract_usage, with_memory_limit

T = TypeVar("T")
_NETWORK_TIMEOUT_S: Final = 10.0  # for another creator to finish the attempt's network
_REMOVAL_TIMEOUT_S: Final = 20.0  # for the engine to complete a removal
_LOOK_S: Final = 0.02
_TOMBSTONE_LIFE: Final = timedelta(days=1)
_CLEAN_EVERY_S: Final = 600.0
_REMOVAL_THREADS: Final = 8


class DockerExecutor:
    """Satisfies :class:`executors.base.Executor` on one engine. Safe to use from several threads and processes.

    Args:
        settings: of all containers.
        runtime_image: brings the runtime; pulled when the engine does not have it.
        default_image: of jobs that name none; empty: these are refused.
        gpus: of the engine's machine.
    """

    name = "docker"
    shares_hosts = False

    def __init__(
        self,
        engine: DockerEngine,
        settings: render.ContainerSettings,
        *,
        runtime_image: str,
        default_image: str = "",
        gpus: Callable[[], tuple[Gpu, ...]] = tuple,
        tombstone_life: timedelta = _TOMBSTONE_LIFE,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._default_image = default_image
        self._gpus = gpus
        self._tombstone_life = tombstone_life
        self._observer = ContainerObserver(engine)
        self._events = EngineEvents(
            engine, settings.instance, self._observer.record_death, self._observer.attempts_with_news
        )
        self._images = DockerImages(engine)
        self._runtime = RuntimeFiles(engine, self._images, runtime_image, settings.instance)
        self._node: str | None = None
        self._cleaned_at = float("-inf")
        self._lock = threading.Lock()

    def close(self) -> None:
        self._events.stop()
        self._engine.close()

    def nodes(self, *, database_id: str = "") -> Sequence[NodeInfo]:
        info = self._read_info()
        machine = nodes.describe(info, self._gpus())
        containers = self._ask(lambda: self._engine.containers(labels.selector(self._settings.instance)))
        foreign = [c["Id"] for c in containers if nodes.is_live_and_foreign(c, database_id)]
        inspected = (self._ask(partial(self._engine.container, container)) for container in foreign)
        return (
            subtract_usage(machine, [nodes.read_usage(container) for container in inspected if container is not None]),
        )

    def assign_addresses(
        self,
        layout: Layout,
        taken_ports: frozenset[int],  # noqa: ARG002
        attempt_id: AttemptId,  # noqa: ARG002
        *,
        world: int = 1,
    ) -> Layout:
        """Aliases in the attempt's own network, with the default ports in its first world."""
        return Layout(
            tuple(
                replace(
                    replica,
                    host=names.host_name(replica.role, replica.index),
                    ports=names.ports_of_world(world, Ports(framework=PS_PORT) if replica.role == "ps" else Ports()),
                )
                for replica in layout.replicas
            )
        )

    def create(self, order: ReplicaOrder) -> None:
        """Blocks for about half a second, more on a busy engine; never for a pull."""
        render.check(order, self._node_name(), self._settings)
        if order.request.gpu_milli:
            order = with_memory_limit(order, self._gpus())
        name = render.container_name(order.key)
        image = self._image_of(order)
        self._check_tombstone(order.key.attempt_id)
        existing = self._ask(lambda: self._engine.container(name))
        try:
            if existing is None:
                self._make(order, image, name)
            elif not self._is_own(existing):
                raise _foreign(name)
            elif existing["State"]["Status"] != "created":
                return
            # Only now: a removal that begins from here on finds this container in the engine.
            self._check_tombstone(order.key.attempt_id, tidy=True)
            self._engine.start(name)
        except EngineError as error:
            self._check_tombstone(order.key.attempt_id, tidy=True)
            if isinstance(error, EngineObjectMissing) and self._engine.container(name) is None:
                raise ExecutorTryAgain(
                    "Its container was taken away while it was being made; it is tried again."
                ) from error
            raise error_messages.not_created(error, order, image) from error

    def stop(self, key: ReplicaKey, *, grace: timedelta) -> None:
        name = render.container_name(key)
        container = self._ask(lambda: self._engine.container(name))
        if container is None or not self._is_own(container) or not container["State"].get("Running"):
            return
        try:
            mark = files.single_file_archive(Path(paths.STOP_MARK).name, exits.stop_mark(grace), self._owner(container))
            self._engine.put(name, paths.STATE, mark)
            if container["State"].get("Paused"):
                self._engine.unpause(name)
            self._engine.kill(name, "SIGTERM")
        except (EngineObjectMissing, NameTaken):  # it ended by itself in this moment
            return
        except EngineError as error:
            raise ExecutorTryAgain(f"The Docker engine did not stop it: {error.message}; it is tried again.") from error

    def change_world(self, order: ReplicaOrder) -> None:
        """See :class:`executors.base.ChangesWorlds`."""
        name = render.container_name(order.key)
        existing = self._ask(lambda: self._engine.container(name))
        world = order.world or 0
        if existing is None or not self._is_own(existing) or not existing["State"].get("Running"):
            return
        container = str(existing["Id"])
        if not self._ask(lambda: self._observer.needs_world(container, order.key, world)):
            return
        # A time of its own, for inodes come again: by both the runtime sees that the file is another one.
        content = files.single_file_archive(
            Path(paths.WORLD).name, order_files.render_world(order), self._owner(existing), mtime=world
        )
        try:
            self._engine.put(container, paths.STATE, content)
        except (EngineObjectMissing, NameTaken):
            return
        except EngineError as error:
            raise ExecutorTryAgain(
                f"The Docker engine did not deliver world {world}: {error.message}; it is tried again."
            ) from error

    def kill(self, key: ReplicaKey) -> None:
        """See :class:`executors.base.ChangesWorlds`. A container that has ended keeps its name, and with it its
        record.
        """
        name = render.container_name(key)
        container = self._ask(lambda: self._engine.container(name))
        if container is None or not self._is_own(container) or not container["State"].get("Running"):
            return
        try:
            self._engine.kill(name, "SIGKILL")
        except (EngineObjectMissing, NameTaken):
            return
        except EngineError as error:
            raise ExecutorTryAgain(f"The Docker engine did not end it: {error.message}; it is tried again.") from error

    # Each observation is fresh.
    def observe(self, attempt_id: AttemptId, *, fresh: bool = False) -> Sequence[Observation]:  # noqa: ARG002
        return newest_generations(
            self._ask(partial(self._observer.observe, summary)) for summary in self._list(attempt_id)
        )

    def attempts(self) -> Mapping[AttemptId, str]:
        own = labels.selector(self._settings.instance)
        objects = [
            *self._ask(lambda: self._engine.containers(own)),
            *self._ask(lambda: self._engine.networks(own)),
            *self._ask(lambda: self._engine.volumes(own)),
        ]
        return labels.databases(thing.get("Labels") for thing in objects)

    def remove(self, attempt_id: AttemptId) -> None:
        """Raises :class:`ExecutorTryAgain` when the engine does not get rid of a container within twenty seconds."""
        own = {labels.INSTANCE: self._settings.instance, render.REMOVED: attempt_id}
        self._ask(lambda: self._engine.create_volume(render.tombstone_name(attempt_id, self._settings.instance), own))
        self._until_removed(lambda: self._list(attempt_id), self._engine.remove_container, "Id")
        selector = labels.selector(self._settings.instance, attempt_id)
        self._until_removed(lambda: self._engine.networks(selector), self._engine.remove_network, "Id")
        self._until_removed(lambda: self._engine.volumes(selector), self._engine.remove_volume, "Name")
        self._observer.forget(attempt_id)
        self._forget_old_tombstones()

    def wait_for_change(self, timeout_s: float) -> frozenset[AttemptId]:
        """See :class:`executors.base.ReportsChanges`."""
        return self._events.wait(timeout_s)

    # Creating

    def _node_name(self) -> str:
        return self._node or nodes.node_name(self._read_info())

    def _read_info(self) -> Mapping[str, Any]:
        """The engine's ``/info`` about its machine."""
        info = self._ask(self._engine.info)
        # Docker Desktop's engine is in a virtual machine, though its socket is here.
        is_here = self._engine.is_local and info.get("OperatingSystem") != "Docker Desktop"
        shm_bytes = int(info.get("MemTotal") or 0) // 2 or self._settings.shm_bytes
        self._settings = replace(self._settings, shm_bytes=shm_bytes, is_here=is_here)
        self._node = nodes.node_name(info)
        return info

    def _image_of(self, order: ReplicaOrder) -> str:
        image = order.image or self._default_image
        if not image:
            raise ExecutorRefused(
                f"Role {order.key.role} names no image, and this platform has no default one; set `image`.",
                field=f"roles.{order.key.role}.image",
            )
        return image

    def _check_tombstone(self, attempt: AttemptId, *, tidy: bool = False) -> None:
        """Raise when the attempt was removed; ``tidy``: after taking away what we may have made of it."""
        if not self._ask(lambda: self._engine.has_volume(render.tombstone_name(attempt, self._settings.instance))):
            return
        if tidy:
            with contextlib.suppress(ExecutorTryAgain):  # gc finds what is left
                self.remove(attempt)
        raise AttemptRemoved(f"Attempt {attempt} was removed; start a new attempt.")

    def _make(self, order: ReplicaOrder, image: str, name: str) -> None:
        """Make and fill the replica's container; returns when there is one, ours or another creator's."""
        facts = self._images.find(image)
        runtime = self._runtime.members(has_installer=order_files.needs_installer(order))
        self._make_network(order)
        body = render.render_container(order, image, self._settings)
        container = self._engine.create_container(body, f"{name}.{secrets.token_hex(4)}")
        try:
            self._fill(container, order, facts, runtime)
            self._engine.rename(container, name)
        except NameTaken:
            self._engine.remove_container(container)
            existing = self._engine.container(name)
            if existing is not None and not self._is_own(existing):
                raise _foreign(name) from None
        except BaseException:
            # Not started and without its name it does nothing; the attempt's removal would find it, too.
            with contextlib.suppress(EngineError, ExecutorTryAgain):
                self._engine.remove_container(container)
            raise

    def _owner(self, container: Mapping[str, Any]) -> files.Owner:
        """The user in a container."""
        return files.owner_of(self._settings.uid, self._settings.gid, str(container["Config"].get("User") or ""))

    def _is_own(self, container: Mapping[str, Any]) -> bool:
        """Whether it is this platform's: another one, restored from the same backup, gives the same names."""
        return bool((container["Config"].get("Labels") or {}).get(labels.INSTANCE) == self._settings.instance)

    def _fill(self, container: str, order: ReplicaOrder, image: ImageFacts, runtime: bytes) -> None:
        owner = files.owner_of(self._settings.uid, self._settings.gid, image.user)
        rendered = order_files.render_order(
            order,
            image_command=order_files.command_of_image(image.entrypoint, image.cmd, order.args),
            code_path=paths.CODE if order.code_path is not None else None,
            enforced=("cpu", "memory", "pids"),
            log_limit_bytes=self._settings.log_limit_bytes,
            is_watched=self._settings.is_here,
        )
        scratch = dict.fromkeys([paths.WORK, *paths.scratch_folders(order)])
        code = None if order.code_path is None else Path(order.code_path)
        try:
            archive = files.pack(runtime, rendered, tuple(scratch), owner, code)
        except OSError as error:
            raise ExecutorTryAgain(f"The code archive cannot be read: {error.strerror}; it is tried again.") from error
        with archive:
            self._engine.put(container, "/", archive)

    def _make_network(self, order: ReplicaOrder) -> None:
        """Create the attempt's network. Of concurrent callers one creates it, and the others wait for it."""
        own = labels.selector(self._settings.instance, order.key.attempt_id)
        body = render.render_network(order, self._settings)
        end = time.monotonic() + _NETWORK_TIMEOUT_S
        while not self._engine.networks(own, body["name"]):
            try:
                self._engine.create_network(body)
            except EngineError as error:
                is_in_progress = isinstance(error, NameTaken) or "bridge name" in error.message
                if not is_in_progress or time.monotonic() > end:
                    raise
                # The engine has no event for a network that another process completes.
                time.sleep(_LOOK_S)  # noqa: TID251

    # Looking and removing

    def _list(self, attempt_id: AttemptId) -> list[dict[str, Any]]:
        return self._ask(lambda: self._engine.containers(labels.selector(self._settings.instance, attempt_id)))

    def _until_removed(
        self, find: Callable[[], Sequence[Mapping[str, Any]]], take_away: Callable[[str], None], key: str
    ) -> None:
        """Take away what ``find`` finds until it finds nothing."""

        def take(thing: Mapping[str, Any]) -> str:
            try:
                take_away(str(thing[key]))
            except (EngineObjectMissing, NameTaken):  # gone, or another process is removing it
                return ""
            except EngineError as error:
                return error.message
            return ""

        end = time.monotonic() + _REMOVAL_TIMEOUT_S
        while found := self._ask(find):
            if len(found) == 1:
                message = take(found[0])
            else:
                with ThreadPoolExecutor(min(_REMOVAL_THREADS, len(found)), thread_name_prefix="remove") as pool:
                    message = max(pool.map(take, found))
            if time.monotonic() > end:
                raise ExecutorTryAgain(
                    f"The Docker engine does not get rid of {len(found)} of its containers, networks or volumes"
                    f"{f' ({message})' if message else ''}; it is tried again."
                )
            if message:
                time.sleep(_LOOK_S)  # noqa: TID251 - the engine frees things a moment after their containers are gone

    def _forget_old_tombstones(self) -> None:
        """Once in ten minutes: volumes of removed attempts that are a day old."""
        with self._lock:
            now = time.monotonic()
            if now - self._cleaned_at < _CLEAN_EVERY_S:
                return
            self._cleaned_at = now
        oldest = datetime.now(UTC) - self._tombstone_life  # noqa: TID251 - compared with the engine's own clock
        own = (f"{labels.INSTANCE}={self._settings.instance}", render.REMOVED)
        for volume in self._ask(lambda: self._engine.volumes(own)):
            if datetime.fromisoformat(volume["CreatedAt"]) < oldest:
                with contextlib.suppress(EngineError):
                    self._engine.remove_volume(volume["Name"])

    @staticmethod
    def _ask(question: Callable[[], T]) -> T:
        """The answer; an unexpected refusal becomes ``ExecutorTryAgain``."""
        try:
            return question()
        except EngineError as error:
            raise ExecutorTryAgain(f"The Docker engine failed: {error.message}. It is tried again.") from error


def _foreign(name: str) -> ExecutorTryAgain:
    return ExecutorTryAgain(
        f"Container {name} on this Docker engine is another platform's; give each its own TRAINMASTER_INSTANCE and "
        "database. It is tried again."
    )
