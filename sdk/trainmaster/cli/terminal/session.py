"""State of one invocation of the command line: the server to use, and the output format."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.contexts import ServerAccess

# Set by tests to an httpx transport; None: the network.
http_transport: Any = None


@dataclass(slots=True)
class CliSession:
    context: str | None = None
    as_json: bool = False

    def server(self) -> ServerAccess:
        from trainmaster.contexts import resolve_server

        return resolve_server(self.context)

    def client(self) -> Client:
        """A client of the server. With few retries: an absent server must be reported within a second."""
        return client_of(self.server())


def client_of(server: ServerAccess, *, timeout_s: float = 30.0, tries: int = 3) -> Client:
    from trainmaster.client import Client, RetryPolicy

    retry = RetryPolicy(tries=tries, first_delay_s=0.15, max_retry_after_s=30)
    return Client.of_server(server, timeout_s=timeout_s, retry=retry, transport=http_transport)


_CURRENT: ContextVar[CliSession] = ContextVar("session")


def begin(context: str | None) -> CliSession:
    session = CliSession(context=context)
    _CURRENT.set(session)
    return session


def current() -> CliSession:
    """The session of this invocation; a new one during shell completion."""
    return _CURRENT.get(None) or begin(None)


def client() -> Client:
    return current().client()


def project_or_default(project: str | None) -> str:
    """``project``, or the project of the environment or the context, or ``default``."""
    return project or current().server().project
