"""What one invocation of the command line shares: the server that is meant, and how to answer."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.contexts import ServerAccess

# Tests put an httpx transport here; None sends over the network.
http_transport: Any = None


@dataclass(slots=True)
class Session:
    context: str | None = None
    as_json: bool = False

    def server(self) -> ServerAccess:
        from trainmaster.contexts import resolve_server

        return resolve_server(self.context)

    def client(self) -> Client:
        """A client of the server that is meant. A person waits: a server that is not there is told within a second."""
        return client_of(self.server())


def client_of(server: ServerAccess, *, timeout_s: float = 30.0, tries: int = 3) -> Client:
    from trainmaster.client import Client, RetryPolicy

    retry = RetryPolicy(tries=tries, first_delay_s=0.15, max_retry_after_s=30)
    return Client.of_server(server, timeout_s=timeout_s, retry=retry, transport=http_transport)


_CURRENT: ContextVar[Session] = ContextVar("session")


def begin(context: str | None) -> Session:
    session = Session(context=context)
    _CURRENT.set(session)
    return session


def current() -> Session:
    """The session of this invocation; a fresh one before it began (shell completion)."""
    return _CURRENT.get(None) or begin(None)


def client() -> Client:
    return current().client()


def project_or_default(project: str | None) -> str:
    """``project``, else that of the environment or the context, else ``default``."""
    return project or current().server().project
