"""Which server, with which token: the environment, the saved contexts, or the platform that runs on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from trainmaster.errors import LocalFileProblem, NotConfigured, NotFound

LOCAL: Final = "local"  # the context of the platform that `trainmaster up` runs here; never saved
NO_SERVER: Final = (
    "No Trainmaster server is known here: start one with `trainmaster up`, log in with `trainmaster login URL`, "
    "or set TRAINMASTER_API_URL and TRAINMASTER_TOKEN."
)
_RAN_BEFORE: Final = (
    "The platform of {home} is not running (it stopped or was killed, or is just starting); its data and jobs are kept, and "
    "jobs of it may still run: `trainmaster up` goes on with it. For another server, `trainmaster login URL`, or set "
    "TRAINMASTER_API_URL and TRAINMASTER_TOKEN."
)
# The second is what many try first; were it passed over, the token would go to some other server.
URL_VARIABLES: Final = ("TRAINMASTER_API_URL", "TRAINMASTER_URL")


@dataclass(frozen=True, slots=True)
class Server:
    """An address with its token. ``origin`` says where they were found, for messages.

    ``home``: the data folder, where it is a platform of this machine: it may come back at another port.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    project: str = "default"
    name: str = ""
    origin: str = ""
    home: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """The saved servers by name, and which of them is meant when none is named."""

    current: str | None = None
    servers: Mapping[str, Server] = field(default_factory=dict)


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
        LocalFileProblem: the file is unreadable or not ours.
    """
    path = path or config_path()
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        servers = {
            name: Server(
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
            f"The saved contexts in {path} cannot be read; mend or delete the file, then `trainmaster login URL`."
        ) from error


def save_contexts(contexts: Contexts, path: Path | None = None) -> Path:
    """Write the file so that only its owner may read it, whole or not at all; returns its path."""
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


def with_server(contexts: Contexts, server: Server) -> Contexts:
    """``contexts`` with ``server`` added or replaced, and current."""
    return Contexts(current=server.name, servers={**contexts.servers, server.name: server})


def where_it_is_now(server: Server) -> Server:
    """``server`` at the address that it has now, where it is a platform of this machine that runs."""
    local = local_server(Path(server.home)) if server.home else None
    return server if local is None else replace(server, url=local.url)


def without_server(contexts: Contexts, name: str) -> Contexts:
    servers = {other: server for other, server in contexts.servers.items() if other != name}
    return Contexts(current=None if contexts.current == name else contexts.current, servers=servers)


def local_server(home: Path | None = None) -> Server | None:
    """The platform that runs on this machine under ``home``, or ``None``.

    A file left by a killed platform counts as none: its process is looked for.
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
    return Server(
        url=url.rstrip("/"), token=token, name=LOCAL, origin=f"`trainmaster up` in {home}", home=str(home.absolute())
    )


def resolve_server(
    context: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Server:
    """The server that is meant: a named context; else the environment; else the current context; else the local one.

    Raises:
        NotConfigured: nothing names a server, no platform runs here, or a variable holds no address or no token.
        NotFound: there is no context of this name.
        LocalFileProblem: the saved contexts are unreadable.
    """
    environ = os.environ if environ is None else environ
    project = environ.get("TRAINMASTER_PROJECT")
    server = _find_server(context or environ.get("TRAINMASTER_CONTEXT"), environ)
    # A token in the environment is meant, wherever the address came from; only a context named on purpose keeps its own.
    if context is None and (token := _token_of(environ)):
        server = replace(server, token=token)
    return replace(server, project=project) if project else server


def _find_server(context: str | None, environ: Mapping[str, str]) -> Server:
    home = home_path(environ)
    if context is None and (variable := next((name for name in URL_VARIABLES if environ.get(name)), None)):
        return _server_of_url(_address_of(variable, environ[variable]), environ, variable)
    saved = load_contexts(config_path(environ))
    name = context or saved.current
    if name == LOCAL and LOCAL not in saved.servers:
        local = local_server(home)
        if local is None:
            raise NotConfigured(_nothing_runs(home) or f"No platform runs in {home}; start one with `trainmaster up`.")
        return local
    if name is not None:
        if name not in saved.servers:
            known = ", ".join(sorted({*saved.servers, LOCAL}))
            raise NotFound(f"There is no context {name!r}; known are {known} (`trainmaster contexts list`).")
        return where_it_is_now(saved.servers[name])
    local = local_server(home)
    if local is None:
        raise NotConfigured(_nothing_runs(home) or NO_SERVER)
    return local


def _nothing_runs(home: Path) -> str:
    """What to say where a platform has been on ``home`` before; empty where none was."""
    # Not Path.exists: that raises for a folder that we may not look into.
    was_there = any(os.path.exists(home / name) for name in ("up.json", "run/up.lock"))  # noqa: PTH110
    return _RAN_BEFORE.format(home=home) if was_there else ""


def _address_of(variable: str, text: str) -> str:
    """The server's address that a person wrote; as `trainmaster login` does, it takes one without http://."""
    url = text.strip()
    url = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(url)
        is_fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_fit = is_fit and not (parts.query or parts.fragment)
    except ValueError:  # a port that is no number, brackets that do not close
        is_fit = False
    if not is_fit:
        raise NotConfigured(
            f"{variable} holds {text!r}, which is not a server's address; write it like http://host:8765."
        )
    return url.rstrip("/")


def _token_of(environ: Mapping[str, str]) -> str | None:
    """The environment's token, without the line end of the file that it was read from."""
    token = environ.get("TRAINMASTER_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise NotConfigured("TRAINMASTER_TOKEN holds no token: one has ASCII letters, digits, `_` and `-` alone.")
    return token or None


def _server_of_url(url: str, environ: Mapping[str, str], origin: str) -> Server:
    """The environment's address. Without a token beside it, one that we hold for the same address serves."""
    server = Server(url=url, token=_token_of(environ), origin=origin)
    if server.token:
        return server
    candidates = [*load_contexts(config_path(environ)).servers.values(), local_server(home_path(environ))]
    token = next((known.token for known in candidates if known and known.url == url), None)
    return replace(server, token=token)


def _is_alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # signal 0 would end the process there; no platform runs there either
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's process
    return True
