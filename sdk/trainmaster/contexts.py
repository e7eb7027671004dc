"""Selects the server and token: from the environment, the saved contexts, or the platform running on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from trainmaster.errors import LocalFileProblem, NotConfigured, NotFound

LOCAL: Final = "local"  # the context of the platform started by `trainmaster up` on this machine; never saved
NO_SERVER: Final = (
    "No Trainmaster server is configured: start one with `trainmaster up`, log in with `trainmaster login URL`, "
    "or set TRAINMASTER_API_URL and TRAINMASTER_TOKEN."
)
_RAN_BEFORE: Final = (
    "The platform of {home} is not running (it stopped, was killed, or is still starting). Its data and jobs are "
    "intact, and its jobs may still run: continue with `trainmaster up`. For another server, use "
    "`trainmaster login URL`, or set TRAINMASTER_API_URL and TRAINMASTER_TOKEN."
)
# Many users try the second name first; if it were ignored, the token would be sent to another server.
URL_VARIABLES: Final = ("TRAINMASTER_API_URL", "TRAINMASTER_URL")


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """A server's URL with its token. ``origin`` says where they were found, for messages.

    ``home``: the data folder if it is a platform on this machine, which may restart on another port.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    project: str = "default"
    name: str = ""
    origin: str = ""
    home: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """The saved servers by name, and the name of the current one."""

    current: str | None = None
    servers: Mapping[str, ServerAccess] = field(default_factory=dict)


def config_path(environ: Mapping[str, str] | None = None) -> Path:
    """The file of the saved contexts; ``TRAINMASTER_CONFIG`` names another."""
    environ = os.environ if environ is None else environ
    if named := environ.get("TRAINMASTER_CONFIG"):
        return Path(named).expanduser()
    from platformdirs import user_config_path

    return user_config_path("trainmaster") / "contexts.json"


def home_path(environ: Mapping[str, str] | None = None) -> Path:
    """The data folder of the embedded platform."""
    environ = os.environ if environ is None else environ
    return Path(environ.get("TRAINMASTER_HOME") or "~/.trainmaster").expanduser()


def load_contexts(path: Path | None = None) -> Contexts:
    """The saved contexts; none when there is no file.

    Raises:
        LocalFileProblem: the file is unreadable or has another format.
    """
    path = path or config_path()
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        servers = {
            name: ServerAccess(
                url=entry["url"],
                token=entry.get("token"),
                project=entry.get("project", "default"),
                name=name,
                origin=f"context {name}",
                home=entry.get("home"),
            )
            for name, entry in raw["contexts"].items()
        }
        return Contexts(current=raw.get("current"), servers=servers)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LocalFileProblem(
            f"The saved contexts in {path} cannot be read; repair or delete the file, then `trainmaster login URL`."
        ) from error


def save_contexts(contexts: Contexts, path: Path | None = None) -> Path:
    """Write the file atomically, readable only by its owner; returns its path."""
    path = path or config_path()
    text = json.dumps(
        {
            "current": contexts.current,
            "contexts": {
                name: {"url": server.url, "token": server.token, "project": server.project}
                | ({"home": server.home} if server.home else {})
                for name, server in sorted(contexts.servers.items())
            },
        },
        indent=2,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        part.replace(path)
    except OSError as error:
        raise LocalFileProblem(f"The contexts cannot be saved in {path}: {error.strerror}.") from error
    return path


def with_server(contexts: Contexts, server: ServerAccess) -> Contexts:
    """``contexts`` with ``server`` added or replaced, as the current one."""
    return Contexts(current=server.name, servers={**contexts.servers, server.name: server})


def with_present_url(server: ServerAccess) -> ServerAccess:
    """``server`` with its present URL, if it is a platform running on this machine."""
    local = local_server(Path(server.home)) if server.home else None
    return server if local is None else replace(server, url=local.url)


def without_server(contexts: Contexts, name: str) -> Contexts:
    servers = {other: server for other, server in contexts.servers.items() if other != name}
    return Contexts(current=None if contexts.current == name else contexts.current, servers=servers)


def local_server(home: Path | None = None) -> ServerAccess | None:
    """The platform that runs on this machine under ``home``, or ``None``.

    A file left behind by a killed platform is ignored: its process must be alive.
    """
    home = home or home_path()
    try:
        up = json.loads((home / "up.json").read_text(encoding="utf-8"))
        url, pid = str(up["url"]), int(up.get("pid", 0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if pid > 0 and not _is_alive(pid):
        return None
    try:
        token: str | None = (home / "token").read_text(encoding="utf-8").strip() or None
    except OSError:
        token = None
    return ServerAccess(
        url=url.rstrip("/"), token=token, name=LOCAL, origin=f"`trainmaster up` in {home}", home=str(home.absolute())
    )


def resolve_server(
    context: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> ServerAccess:
    """The server to use: a named context, else the environment, else the current context, else the local platform.

    Raises:
        NotConfigured: no server is named and no platform runs here, or a variable holds an invalid URL or token.
        NotFound: there is no context of this name.
        LocalFileProblem: the saved contexts are unreadable.
    """
    environ = os.environ if environ is None else environ
    project = environ.get("TRAINMASTER_PROJECT")
    server = _find_server(context or environ.get("TRAINMASTER_CONTEXT"), environ)
    # A token in the environment wins, wherever the URL came from; only an explicitly named context keeps its own.
    if context is None and (token := _token_of(environ)):
        server = replace(server, token=token)
    return replace(server, project=project) if project else server


def _find_server(context: str | None, environ: Mapping[str, str]) -> ServerAccess:
    home = home_path(environ)
    if context is None and (variable := next((name for name in URL_VARIABLES if environ.get(name)), None)):
        return _server_of_url(_address_of(variable, environ[variable]), environ, variable)
    saved = load_contexts(config_path(environ))
    name = context or saved.current
    if name == LOCAL and LOCAL not in saved.servers:
        local = local_server(home)
        if local is None:
            raise NotConfigured(_not_running(home) or f"No platform runs in {home}; start one with `trainmaster up`.")
        return local
    if name is not None:
        if name not in saved.servers:
            known = ", ".join(sorted({*saved.servers, LOCAL}))
            raise NotFound(f"There is no context {name!r}; known are {known} (`trainmaster contexts list`).")
        return with_present_url(saved.servers[name])
    local = local_server(home)
    if local is None:
        raise NotConfigured(_not_running(home) or NO_SERVER)
    return local


def _not_running(home: Path) -> str:
    """The message for a stopped platform in ``home``; empty if none ever ran there."""
    # Not Path.exists, which raises for a folder without search permission.
    ran_before = any(os.path.exists(home / name) for name in ("up.json", "run/up.lock"))  # noqa: PTH110
    return _RAN_BEFORE.format(home=home) if ran_before else ""


def _address_of(variable: str, text: str) -> str:
    """The server URL in ``text``; like `trainmaster login`, accepts one without http://."""
    url = text.strip()
    url = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_valid = is_valid and not (parts.query or parts.fragment)
    except ValueError:  # a port that is not a number, unbalanced brackets
        is_valid = False
    if not is_valid:
        raise NotConfigured(f"{variable} is {text!r}, which is not a server's URL; write it like http://host:8765.")
    return url.rstrip("/")


def _token_of(environ: Mapping[str, str]) -> str | None:
    """The environment's token, without a trailing newline."""
    token = environ.get("TRAINMASTER_TOKEN", "").strip()
    require_token(token, "TRAINMASTER_TOKEN")
    return token or None


def require_token(token: str, origin: str) -> None:
    """Raises ``NotConfigured`` if a header cannot carry ``token``. ``origin``: where it came from, for the message."""
    if not (token.isascii() and token.isprintable()):
        raise NotConfigured(f"{origin} is not a valid token: tokens have only ASCII letters, digits, `_` and `-`.")


def _server_of_url(url: str, environ: Mapping[str, str], origin: str) -> ServerAccess:
    """The server at the environment's URL; without a token in the environment, a saved one for the same URL is used."""
    server = ServerAccess(url=url, token=_token_of(environ), origin=origin)
    if server.token:
        return server
    candidates = [*load_contexts(config_path(environ)).servers.values(), local_server(home_path(environ))]
    token = next((known.token for known in candidates if known and known.url == url), None)
    return replace(server, token=token)


def _is_alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # on Windows signal 0 would end the process; no platform runs there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's process
    return True
