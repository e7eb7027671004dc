"""The two clients and the handles of their jobs."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from trainmaster.client.calls import jobs as calls
from trainmaster.client.compose import RunOptions, SpecSource, spec_of_run, submit_with_code
from trainmaster.client.flows.transfer import Progress
from trainmaster.client.operations import JobOperations, Operations
from trainmaster.client.steps import Executable, RetryPolicy
from trainmaster.client.transport import DEFAULT_TIMEOUT_S, AsyncTransport, ConnectionSettings, SyncTransport
from trainmaster.contexts import ServerAccess, require_token, resolve_server
from trainmaster.packing import PackedFolder
from trainmaster.wire.jobs import TERMINAL_STATES, ExitView, JobDetail

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class _Settings:
    """Constructors and settings of both clients."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy | None = None,
        verify: bool | str | ssl.SSLContext = True,
        project: str = "default",
        transport: Any = None,
    ) -> None:
        """A client of the server at ``url``.

        Args:
            url: such as ``http://127.0.0.1:8765``.
            token: as printed by ``trainmaster token create``.
            timeout_s: of one request; streams have no time limit.
            retry: when requests are retried.
            verify: for httpx: ``False``, a CA file, or an ``SSLContext``.
            project: default project for specs without one.
            transport: a custom httpx transport, for tests and unusual networks.

        Raises:
            NotConfigured: ``token`` cannot be one.
        """
        require_token(token or "", "token")
        self.url = url.rstrip("/")
        self.project = project
        connection = ConnectionSettings(self.url, token, timeout_s, retry or RetryPolicy(), verify)
        self._open(connection, transport)

    def _open(self, connection: ConnectionSettings, transport: Any) -> None:
        raise NotImplementedError

    @classmethod
    def from_env(cls, context: str | None = None, **options: Any) -> Self:
        """A client of the configured server.

        The first of: ``context``; ``TRAINMASTER_API_URL`` (or ``TRAINMASTER_URL``) with ``TRAINMASTER_TOKEN``; the
        current saved context (``trainmaster login``); the platform that ``trainmaster up`` runs on this machine.

        Raises:
            NotConfigured: no server is configured, or a variable holds an invalid URL or token.
        """
        return cls.of_server(resolve_server(context), **options)

    @classmethod
    def of_server(cls, server: ServerAccess, **options: Any) -> Self:
        return cls(server.url, server.token, **{"project": server.project, **options})


class _Handle(JobOperations):
    """A job with its last known state; ``detail()`` and every method that changes the job update it."""

    def __init__(self, view: JobDetail) -> None:
        self.view = view

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def state(self) -> str:
        return self.view.state

    @property
    def exit(self) -> ExitView | None:
        """How the job ended; ``None`` before its end."""
        return self.view.exit

    @property
    def has_ended(self) -> bool:
        return self.view.state in TERMINAL_STATES

    @property
    def has_succeeded(self) -> bool:
        return self.view.state == "succeeded"

    def _remember(self, result: object) -> None:
        if isinstance(result, JobDetail) and result.id == self.view.id:
            self.view = result

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} ({self.id}) {self.state}>"


class Job(_Handle):
    """A job of a :class:`Client`."""

    def __init__(self, client: Client, view: JobDetail) -> None:
        super().__init__(view)
        self._client = client

    @property
    def runner(self) -> Job:
        return self

    def run(self, steps: Executable[T]) -> T:
        result = self._client.runner.run(steps)
        self._remember(result)
        return result

    def iterate(self, steps: Executable[None]) -> Iterator[Any]:
        return self._client.runner.iterate(steps)

    def clone(self, *, changes: Mapping[str, Any] | None = None, resume: bool = False) -> Job:
        """A new job from this job's spec, patched with ``changes`` (RFC 7396)."""
        return Job(self._client, self._client.runner.run(calls.clone_job(self.id, changes=changes, resume=resume)))


class AsyncJob(_Handle):
    """A job of an :class:`AsyncClient`."""

    def __init__(self, client: AsyncClient, view: JobDetail) -> None:
        super().__init__(view)
        self._client = client

    @property
    def runner(self) -> AsyncJob:
        return self

    async def run(self, steps: Executable[T]) -> T:
        result = await self._client.runner.run(steps)
        self._remember(result)
        return result

    def iterate(self, steps: Executable[None]) -> AsyncIterator[Any]:
        return self._client.runner.iterate(steps)

    async def clone(self, *, changes: Mapping[str, Any] | None = None, resume: bool = False) -> AsyncJob:
        """A new job from this job's spec, patched with ``changes`` (RFC 7396)."""
        call = calls.clone_job(self.id, changes=changes, resume=resume)
        return AsyncJob(self._client, await self._client.runner.run(call))


class Client(_Settings, Operations):
    """Blocking client of a Trainmaster server. Thread-safe; close it, or use ``with``."""

    runner: SyncTransport

    def _open(self, connection: ConnectionSettings, transport: httpx.BaseTransport | None) -> None:
        self.runner = SyncTransport(connection, transport)

    def close(self) -> None:
        self.runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self,
        spec: SpecSource,
        *,
        code: Path | str | PackedFolder | None = None,
        idempotency_key: str | None = None,
        progress: Progress | None = None,
    ) -> Job:
        """Submit a ``JobSpec``, a mapping, or the YAML or JSON file at a path.

        Args:
            code: a folder to pack and upload, in place of the spec's ``code``.
            idempotency_key: a repeated key never creates a second job; generated by default.
            progress: called with the bytes sent and the total.
        """
        flow = submit_with_code(spec, code, project=self.project, idempotency_key=idempotency_key, progress=progress)
        return Job(self, self.runner.run(flow))

    def run(
        self,
        folder: Path | str | None,
        command: str | Sequence[str],
        *,
        idempotency_key: str | None = None,
        progress: Progress | None = None,
        **options: Unpack[RunOptions],
    ) -> Job:
        """Submit ``command`` with the code in ``folder`` (``None``: without code).

        For example ``client.run(".", ["python", "train.py"], workers=2, gpus=1)``.
        """
        spec = spec_of_run(command, options, folder=folder)
        return self.submit(spec, code=folder, idempotency_key=idempotency_key, progress=progress)

    def job(self, job: str) -> Job:
        """A handle of the job of this id, or of the newest visible one of this name."""
        return Job(self, self.runner.run(calls.get_job(job)))


class AsyncClient(_Settings, Operations):
    """Asynchronous client of a Trainmaster server. Close it, or use ``async with``."""

    runner: AsyncTransport

    def _open(self, connection: ConnectionSettings, transport: httpx.AsyncBaseTransport | None) -> None:
        self.runner = AsyncTransport(connection, transport)

    async def close(self) -> None:
        await self.runner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def submit(
        self,
        spec: SpecSource,
        *,
        code: Path | str | PackedFolder | None = None,
        idempotency_key: str | None = None,
        progress: Progress | None = None,
    ) -> AsyncJob:
        """As :meth:`Client.submit`."""
        flow = submit_with_code(spec, code, project=self.project, idempotency_key=idempotency_key, progress=progress)
        return AsyncJob(self, await self.runner.run(flow))

    async def run(
        self,
        folder: Path | str | None,
        command: str | Sequence[str],
        *,
        idempotency_key: str | None = None,
        progress: Progress | None = None,
        **options: Unpack[RunOptions],
    ) -> AsyncJob:
        """As :meth:`Client.run`."""
        spec = spec_of_run(command, options, folder=folder)
        return await self.submit(spec, code=folder, idempotency_key=idempotency_key, progress=progress)

    async def job(self, job: str) -> AsyncJob:
        """As :meth:`Client.job`."""
        return AsyncJob(self, await self.runner.run(calls.get_job(job)))
