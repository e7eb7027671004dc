"""The part of the engine's API that the driver uses. Errors come in two families: ``ExecutorTryAgain`` when the
engine is unreachable or fails, :class:`EngineError` when it refuses a request.
"""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, BinaryIO, Final, TypeVar

import docker
import requests
import urllib3.exceptions
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, NotFound
from docker.utils import kwargs_from_env

from core.domain.errors import ExecutorTryAgain

T = TypeVar("T")
_TIMEOUT_S: Final = 60  # starting a container on a busy machine takes seconds
_POOL: Final = 32  # open connections, which is the number of concurrent requests
_AWAY_STATUS: Final = (502, 503, 504)  # what a proxy in front of the engine says for it


class EngineError(Exception):
    """The engine refused a request. ``message`` is the engine's own text."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class EngineObjectMissing(EngineError):
    """There is no such thing (404)."""


class NameTaken(EngineError):
    """The name is taken, or the thing is in a state that does not allow it (409)."""


class DockerEngine:
    """One connection pool to one engine, made at the first call. Safe for many threads.

    Args:
        environment: where DOCKER_HOST, DOCKER_CONTEXT and the TLS variables are looked up; default the process's.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._lock = threading.Lock()
        self._client: docker.APIClient | None = None

    @property
    def is_local(self) -> bool:
        """Whether the engine's address is one of this machine (a Unix socket)."""
        url = self._arguments().get("base_url") or "unix://"
        return str(url).startswith(("unix://", "http+unix://"))

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    # The engine

    def info(self) -> dict[str, Any]:
        return self._ask(lambda client: client.info())

    def events(self, filters: Mapping[str, Any], since: datetime | None = None) -> Any:
        """An endless stream of events; ``close()`` it from any thread. Reading it may raise ``ExecutorTryAgain``."""
        return self._ask(lambda client: client.events(filters=dict(filters), since=since, decode=True))

    # Images

    def image(self, name: str) -> dict[str, Any]:
        """Raises :class:`EngineObjectMissing`."""
        image: dict[str, Any] = self._ask(lambda client: client.inspect_image(name))  # type: ignore[no-untyped-call]
        return image

    def pull(self, name: str) -> Iterator[dict[str, Any]]:
        """Pull it; the engine's lines of progress. Raises as all calls do, at the first line or at any later one."""
        with _translated_errors():
            yield from self._connected().pull(name, stream=True, decode=True)

    # Containers

    def containers(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Summaries of all containers with ``labels``, in whatever state."""
        filters = {"label": _pairs(labels)}
        return self._ask(lambda client: client.containers(all=True, filters=filters))

    def container(self, name: str) -> dict[str, Any] | None:
        try:
            container: dict[str, Any] = self._ask(lambda client: client.inspect_container(name))
        except EngineObjectMissing:
            return None
        return container

    def create_container(self, body: Mapping[str, Any], name: str) -> str:
        """Its id. Nothing runs yet."""
        created: dict[str, Any] = self._ask(
            lambda client: client.create_container_from_config(dict(body), name)  # type: ignore[no-untyped-call]
        )
        return str(created["Id"])

    def rename(self, container: str, name: str) -> None:
        """Raises :class:`NameTaken` when another container has that name: of concurrent callers one succeeds."""
        self._ask(lambda client: client.rename(container, name))

    def start(self, container: str) -> None:
        """No error when it runs already."""
        self._ask(lambda client: client.start(container))

    def kill(self, container: str, signal: str) -> None:
        self._ask(lambda client: client.kill(container, signal))

    def unpause(self, container: str) -> None:
        self._ask(lambda client: client.unpause(container))

    def remove_container(self, container: str) -> None:
        """Kill it and remove it with its nameless volumes."""
        self._ask(lambda client: client.remove_container(container, force=True, v=True))

    def logs(self, container: str, lines: int) -> str:
        """The last lines that process 1 itself wrote."""
        message: bytes = self._ask(lambda client: client.logs(container, tail=lines))
        return message.decode(errors="replace")

    # Files in containers

    def put(self, container: str, path: str, archive: bytes | BinaryIO) -> None:
        """Unpack a tar archive at ``path``."""
        self._ask(lambda client: client.put_archive(container, path, archive))

    def get(self, container: str, path: str) -> bytes | None:
        """The tar archive of what lies at ``path``; ``None`` when there is nothing."""

        def fetch(client: docker.APIClient) -> bytes:
            stream, _ = client.get_archive(container, path)
            return b"".join(stream)

        try:
            return self._ask(fetch)
        except EngineObjectMissing:
            return None

    def read(self, container: str, path: str) -> bytes | None:
        """The content of a file."""
        archive = self.get(container, path)
        if archive is None:
            return None
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            member = tar.next()
            stream = tar.extractfile(member) if member is not None else None
            return None if stream is None else stream.read()

    def stamp(self, container: str, path: str) -> str | None:
        """Changes whenever the file does; ``None`` when there is none. Costs a twentieth of :meth:`read`."""

        def read_stat(client: docker.APIClient) -> str:
            url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"
            answer = client.head(url, params={"path": path}, timeout=_TIMEOUT_S)
            if answer.status_code == 404:
                raise NotFound("no such file", response=answer)
            answer.raise_for_status()
            return str(answer.headers.get("X-Docker-Container-Path-Stat", ""))

        try:
            return self._ask(read_stat)
        except EngineObjectMissing:
            return None

    # Networks and volumes

    def networks(self, labels: Mapping[str, str], name: str | None = None) -> list[dict[str, Any]]:
        filters: dict[str, Any] = {"label": _pairs(labels)}
        networks: list[dict[str, Any]] = self._ask(lambda client: client.networks(filters=filters))
        return [network for network in networks if name is None or network["Name"] == name]

    def create_network(self, body: Mapping[str, Any]) -> None:
        self._ask(lambda client: client.create_network(**body))

    def remove_network(self, network: str) -> None:
        self._ask(lambda client: client.remove_network(network))

    def volumes(self, labels: Mapping[str, str] | tuple[str, ...]) -> list[dict[str, Any]]:
        """By labels and their values, or by labels alone."""
        label_filters = list(labels) if isinstance(labels, tuple) else _pairs(labels)
        answer = self._ask(lambda client: client.volumes(filters={"label": label_filters}))
        return list(answer.get("Volumes") or [])

    def has_volume(self, name: str) -> bool:
        try:
            self._ask(lambda client: client.inspect_volume(name))
        except EngineObjectMissing:
            return False
        return True

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """No error when there is one of this name."""
        self._ask(lambda client: client.create_volume(name, labels=dict(labels)))

    def remove_volume(self, name: str) -> None:
        self._ask(lambda client: client.remove_volume(name))

    # Talking

    def _ask(self, request: Callable[[docker.APIClient], T]) -> T:
        with _translated_errors():
            return request(self._connected())

    def _connected(self) -> docker.APIClient:
        with self._lock:
            if self._client is None:
                arguments = self._arguments()
                self._client = docker.APIClient(
                    version="auto", timeout=_TIMEOUT_S, num_pools=4, max_pool_size=_POOL, **arguments
                )
            return self._client

    def _arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {**kwargs_from_env(environment=self._environment)}
        if "base_url" not in arguments:
            context = ContextAPI.get_context(self._environment.get("DOCKER_CONTEXT") or None)
            if context is not None and context.Host:
                arguments["base_url"] = context.Host
                if context.TLSConfig is not None:
                    arguments["tls"] = context.TLSConfig
        return arguments


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except APIError as error:
        raise _answer(error) from error
    except PermissionError as error:
        raise _forbidden() from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, DockerException, OSError) as error:
        if "Permission denied" in str(error):
            raise _forbidden() from error
        raise ExecutorTryAgain(
            "The Docker engine does not answer; containers go on without it, and it is tried again."
        ) from error


def _answer(error: APIError) -> Exception:
    status = int(error.status_code or 500)
    message = str(error.explanation or error).strip()
    if status in _AWAY_STATUS:
        return ExecutorTryAgain(f"The Docker engine does not answer ({message}); it is tried again.")
    kind = {404: EngineObjectMissing, 409: NameTaken}.get(status, EngineError)
    return kind(status, message)


def _forbidden() -> ExecutorTryAgain:
    return ExecutorTryAgain(
        "The platform may not use the Docker engine's socket; let its user into the group `docker`, or set DOCKER_HOST."
    )


def _pairs(labels: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in labels.items()]
