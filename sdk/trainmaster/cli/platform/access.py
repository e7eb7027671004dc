"""``login``, ``logout`` and ``contexts``: saved servers with their tokens. ``token``: access tokens."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, cast
from urllib.parse import parse_qs, urlsplit

import typer

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from trainmaster.client import Client
    from trainmaster.errors import ServerUnreachable
    from trainmaster.wire.admin import CallerIdentity, Scope, TokenView

_PANEL = "Access"
contexts_app = typer.Typer(help="Saved servers.", no_args_is_help=True)
token_app = typer.Typer(help="Access tokens.", no_args_is_help=True)
Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        help="read, write, admin, or of jobs, files, models, endpoints: jobs:read, jobs:write, …. Repeatable.",
    ),
]
Context = Annotated[str, typer.Argument(metavar="NAME", autocompletion=options.complete_context)]


def register(root: typer.Typer) -> None:
    root.command(rich_help_panel=_PANEL)(login)
    root.command(rich_help_panel=_PANEL)(logout)
    root.add_typer(contexts_app, name="contexts", rich_help_panel=_PANEL)
    root.add_typer(token_app, name="token", rich_help_panel=_PANEL)


def login(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The server's URL, or a one-time login link.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", help="Token; `-` reads it from stdin. Default: prompt."),
    ] = None,
    provider: Annotated[
        str | None, typer.Option("--provider", help="Log in by this identity provider, in a browser anywhere.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the context; default: the host.")] = None,
    project: Annotated[str, typer.Option("--project", "-p", help="Your default project.")] = "default",
    link: Annotated[
        bool, typer.Option("--link", help="Print a one-time link that logs a browser in as you; save nothing.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Save a server with its token as the current context; or with --link: log a browser in."""
    if link:
        if url is not None or token is not None or name is not None or provider is not None:
            raise typer.BadParameter(
                "applies to the current server (or --context) and takes no URL", param_hint="--link"
            )
        _print_link(as_json=json)
        return
    if url is None:
        raise typer.BadParameter("give the server's URL, such as http://lab:8765", param_hint="URL")
    from trainmaster.contexts import ServerAccess, load_contexts, local_server, save_contexts, with_server

    base, code = _parts_of(url)
    if provider is not None and (token is not None or code is not None):
        raise typer.BadParameter("give it, or a token or login link, not both", param_hint="--provider")
    _check_server(base)
    text = _token_for(base, code, token) if provider is None else _token_by(base, provider)
    name = name or _name_of(base)
    local = local_server()
    home = local.home if local is not None and local.url == base else None
    server = ServerAccess(base, text, project=project, name=name, home=home)
    with session.client_of(server) as client:
        caller = client.get_me()
    path = save_contexts(with_server(load_contexts(), server))
    if json:
        output.print_json({"context": name, "url": base, "user": caller.user, "is_admin": caller.is_admin})
        return
    output.say(f"Logged in to {base} as {caller.user}{_rank(caller)}; context {name} is current.")
    output.note(f"Saved in {path}.", "dim")


def _print_link(*, as_json: bool) -> None:
    with session.client() as client:
        made = client.create_login_code()
        link = link_of(client.url, made.code)
    if as_json:
        output.print_json({"url": link, "user": made.user, "expires_at": made.expires_at.isoformat()})
        return
    output.note(f"Logs a browser in as {made.user}, once, until {output.local_time(made.expires_at)}:", "dim")
    output.say(link)


def link_of(url: str, code: str) -> str:
    """The URL that logs a browser in to the server."""
    return f"{url.removesuffix('/api/v1')}/login?code={code}"


def _check_server(base: str) -> None:
    """Raises ``ServerUnreachable`` for a wrong URL, before the user is prompted for a token."""
    from trainmaster.contexts import ServerAccess
    from trainmaster.errors import NotFound, ServerFailure, ServerUnreachable, TrainmasterError

    try:
        with session.client_of(ServerAccess(base), tries=1) as client:
            client.get_health()
    except (ServerFailure, NotFound) as error:
        raise ServerUnreachable(
            f"{base} is not a Trainmaster server; check the URL, such as http://lab:8765."
        ) from error
    except ServerUnreachable as error:
        raise ServerUnreachable(f"{base} cannot be reached: {_why_unreachable(base, error)}") from error
    except TrainmasterError:
        pass  # an unhealthy server, or one that requires a token for every request: the login reports it


def _why_unreachable(base: str, error: ServerUnreachable) -> str:
    import socket

    if error.is_sent or "certificate" in error.sentence:
        return error.sentence
    parts = urlsplit(base)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.getaddrinfo(host, port)
    except OSError:
        return f"the host name {host} cannot be resolved; write the URL like http://lab:8765."
    return f"no server listens on port {port}; check host and port, and whether the server runs."


def _parts_of(url: str) -> tuple[str, str | None]:
    """The server's URL, and the one-time code if ``url`` is a login link."""
    if not url.strip():
        raise typer.BadParameter("is empty; give the server's URL, such as http://lab:8765", param_hint="URL")
    if "://" not in url:
        url = f"http://{url}"
    wrong = typer.BadParameter(f"{url!r} is not a URL like http://host:8765", param_hint="URL")
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, unbalanced brackets
        raise wrong from None
    if not is_valid:
        raise wrong
    code = parse_qs(parts.query).get("code", [None])[0]
    path = re.sub(r"/(login|api/v1|api/v1/login)/?$", "", parts.path).rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}", code


def _token_for(base: str, code: str | None, token: str | None) -> str:
    from trainmaster.contexts import ServerAccess, local_server, require_token

    if code is not None:
        with session.client_of(ServerAccess(base)) as client:
            return client.exchange_login_code(code).token
    if token == "-":  # noqa: S105 (means stdin)
        token = sys.stdin.readline().strip()
    if token is None:
        local = local_server()
        if local is not None and local.url == base and local.token:
            return local.token
        others = _providers_note(base)
        if not output.is_interactive():
            raise typer.BadParameter(
                f"give one, or `--token -` to read it from stdin{f'; {others}' if others else ''}", param_hint="--token"
            )
        if others:
            output.note(f"Without a token {others}.", "dim")
        token = str(typer.prompt(f"Token for {base}", hide_input=True, err=True)).strip()
    if not token:
        raise typer.BadParameter("is empty", param_hint="--token")
    require_token(token, "--token")
    return token


def _providers_note(base: str) -> str:
    """How to log in without a token; empty without identity providers, or on a server that knows of none."""
    from trainmaster.contexts import ServerAccess
    from trainmaster.errors import TrainmasterError

    try:
        with session.client_of(ServerAccess(base), tries=1) as client:
            names = [provider.name for provider in client.list_login_providers()]
    except TrainmasterError:
        return ""
    return f"use `--provider {'` or `--provider '.join(names)}`" if names else ""


def _token_by(base: str, provider: str) -> str:
    """The token of a login in a browser, on this or another device; waits for it.

    Raises:
        Unauthenticated: the user refused, or took longer than the provider allows.
    """
    from trainmaster.contexts import ServerAccess

    with session.client_of(ServerAccess(base)) as client:
        started = client.start_device_login(provider)
        output.note(f"Open {started.verification_uri} in a browser and enter the code:")
        output.note(started.user_code, "bold")
        if started.verification_uri_complete is not None:
            output.note(f"Or open {started.verification_uri_complete}", "dim")
        interval_s = started.interval_s
        while True:  # the server ends it: the code expires
            time.sleep(interval_s)  # noqa: TID251 (the command line is a boundary)
            answer = client.poll_device_login(provider, started.device_code)
            if answer.token is not None:
                return answer.token.token
            interval_s += answer.slow_down_s


def _name_of(base: str) -> str:
    host = urlsplit(base).netloc
    return re.sub(r"[^A-Za-z0-9.-]+", "-", host).strip("-") or "server"


def _rank(caller: CallerIdentity) -> str:
    return " (platform admin)" if caller.is_admin else ""


def logout(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Default: the current context.", autocompletion=options.complete_context),
    ] = None,
    json: options.Json = False,
) -> None:
    """Remove a context and its token from this machine. The token stays valid; `token revoke` revokes it."""
    from trainmaster.contexts import LOCAL, load_contexts, local_server
    from trainmaster.errors import NotConfigured

    name = name or load_contexts().current or (LOCAL if local_server() is not None else None)
    if name is None:
        raise NotConfigured("You are not logged in to any server.")
    _forget(name)
    output.print_result({"forgotten": name}, f"Forgot {name}.", as_json=json)


def _forget(name: str) -> None:
    from trainmaster.contexts import LOCAL, load_contexts, save_contexts, without_server
    from trainmaster.errors import Conflict, NotFound

    contexts = load_contexts()
    if name == LOCAL and name not in contexts.servers:
        raise Conflict(
            "The context local is the platform on this machine, which needs no login and cannot be removed. "
            "`trainmaster down` stops it, `trainmaster contexts use NAME` selects another server."
        )
    if name not in contexts.servers:
        raise NotFound(f"There is no context {name!r}; see `trainmaster contexts list`.")
    save_contexts(without_server(contexts, name))


@contexts_app.command("list")
def list_contexts(json: options.Json = False) -> None:
    """List the contexts; the current one is marked."""
    from trainmaster.contexts import LOCAL, load_contexts, local_server, with_present_url

    contexts = load_contexts()
    servers = {name: with_present_url(server) for name, server in sorted(contexts.servers.items())}
    local = local_server()
    if local is not None:
        servers.setdefault(LOCAL, local)
    current = contexts.current or (LOCAL if local is not None else None)
    if json:
        output.print_json(
            [
                {"name": name, "url": server.url, "project": server.project, "is_current": name == current}
                for name, server in servers.items()
            ]
        )
        return
    output.print_table(
        ("", "NAME", "URL", "PROJECT"),
        [("*" if name == current else " ", name, server.url, server.project) for name, server in servers.items()],
        empty="No contexts; start a server with `trainmaster up` or log in with `trainmaster login URL`.",
    )


@contexts_app.command("use")
def use_context(name: Context, json: options.Json = False) -> None:
    """Select the current context; `local` is the platform running on this machine."""
    from dataclasses import replace

    from trainmaster.contexts import LOCAL, load_contexts, save_contexts
    from trainmaster.errors import NotFound

    contexts = load_contexts()
    if name not in contexts.servers and name != LOCAL:
        raise NotFound(f"There is no context {name!r}; see `trainmaster contexts list`.")
    save_contexts(replace(contexts, current=name))
    output.print_result({"current": name}, f"{name} is current.", as_json=json)


@contexts_app.command("remove")
def remove_context(name: Context, json: options.Json = False) -> None:
    """Remove a context and its token."""
    _forget(name)
    output.print_result({"forgotten": name}, f"Forgot {name}.", as_json=json)


# --- tokens ---------------------------------------------------------------------------------------------------------


@token_app.command("show")
def show_token(json: options.Json = False) -> None:
    """Print the token used by this machine to stdout."""
    from trainmaster.errors import NotConfigured

    server = session.current().server()
    if not server.token:
        raise NotConfigured(f"No token is saved for {server.url}; get one with `trainmaster login {server.url}`.")
    if json:
        output.print_json({"url": server.url, "token": server.token, "origin": server.origin})
        return
    output.note(f"For {server.url}, from {server.origin}:", "dim")
    output.say(server.token)


def scopes_of(texts: Sequence[str] | None) -> list[Scope]:
    from trainmaster.wire.admin import SCOPES

    unknown = sorted({*(texts or ())}.difference(SCOPES))
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(SCOPES)}", param_hint="--scope")
    return cast("list[Scope]", texts or ["read", "write"])


@token_app.command("create")
def create_token(
    name: Annotated[str, typer.Argument(help="Purpose of the token, such as ci.")],
    scopes: Scopes = None,
    project: Annotated[
        list[str] | None,
        typer.Option(
            "--project", "-p", help="Limit it to this project. Repeatable.", autocompletion=options.complete_project
        ),
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option("--expires-in", help="Such as 12h or 30d; default: with your own.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="For another user (platform admins).")] = None,
    json: options.Json = False,
) -> None:
    """Create a token. Its text is shown only once."""
    expires_in_s = None if expires_in is None else options.seconds_of(expires_in, "--expires-in")
    with session.client() as client:
        token = client.create_token(
            name,
            scopes=scopes_of(scopes),
            projects=project,
            expires_in_s=expires_in_s,
            user=user,
        )
    if json:
        output.print_json(token)
        return
    output.note(f"Token {token.name} ({token.id}) of {token.user}; it is shown only now:", "dim")
    output.say(token.token)


@token_app.command("list")
def list_tokens(
    user: Annotated[str | None, typer.Option("--user", "-u", help="Another user's (platform admins).")] = None,
    all_users: Annotated[bool, typer.Option("--all", "-a", help="Of all users (platform admins).")] = False,
    json: options.Json = False,
) -> None:
    """List your tokens, or those of other users, without their texts."""
    if all_users and user is not None:
        raise typer.BadParameter("give --user or --all, not both", param_hint="--all")
    with session.client() as client:
        tokens = list(client.list_tokens(user=user, all_users=all_users))
    print_tokens(tokens, as_json=json)


def print_tokens(tokens: Sequence[TokenView], *, as_json: bool) -> None:
    if as_json:
        output.print_json(tokens)
        return
    now = output.now()
    output.print_table(
        ("ID", "NAME", "USER", "SCOPES", "PROJECTS", "CREATED", "LAST USED", "STATE"),
        [
            (
                token.id,
                token.name,
                token.user,
                " ".join(token.scopes),
                "all" if token.projects is None else " ".join(token.projects),
                output.ago(token.created_at, now),
                output.ago(token.last_used_at, now),
                _state_of(token, now),
            )
            for token in tokens
        ],
        empty="No tokens.",
    )


def _state_of(token: TokenView, now: datetime) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "valid"


@token_app.command("revoke")
def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID|NAME", help="ID, or a unique name, as shown by `token list`.")],
    keep_children: Annotated[
        bool, typer.Option("--keep-children", help="Leave the tokens valid that were created with it.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Revoke a token at once, with the tokens and sessions that were created with it."""
    from trainmaster.errors import NotFound

    with session.client() as client:
        try:
            client.revoke_token(token, keep_children=keep_children)
        except NotFound:
            token_id = _token_named(client, token)
            if token_id is None:
                raise
            client.revoke_token(token_id, keep_children=keep_children)
            token = token_id
    output.print_result({"revoked": token}, f"{token} revoked", as_json=json)


def _token_named(client: Client, name: str) -> str | None:
    """The ID of the caller's valid token ``name``; ``None`` without one."""
    from trainmaster.errors import Conflict

    now = output.now()
    ids = [token.id for token in client.list_tokens() if token.name == name and _state_of(token, now) == "valid"]
    if len(ids) > 1:
        raise Conflict(f"{len(ids)} of your valid tokens have the name {name}; give the ID of one: {', '.join(ids)}.")
    return ids[0] if ids else None
