"""``token show|create|revoke|list``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.terminal import options, output, session

app = typer.Typer(help="Access tokens.", no_args_is_help=True)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="token", rich_help_panel="Access")


@app.command()
def show(json: options.Json = False) -> None:
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


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Purpose of the token, such as ci.")],
    scopes: Annotated[
        list[str] | None, typer.Option("--scope", help="read, write or admin. Repeatable. Default: read and write.")
    ] = None,
    expires_in: Annotated[str | None, typer.Option("--expires-in", help="Such as 12h or 30d; default: never.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="For another user (platform admins).")] = None,
    json: options.Json = False,
) -> None:
    """Create a token. Its text is shown only once."""
    from trainmaster.spec.quantity import parse_duration_s

    unknown = sorted({*(scopes or [])} - {"read", "write", "admin"})
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of read, write, admin", param_hint="--scope")
    try:
        expires_in_s = None if expires_in is None else parse_duration_s(expires_in)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--expires-in") from error
    with session.client() as client:
        token = client.create_token(
            name,
            scopes=scopes or ["read", "write"],  # type: ignore[arg-type]  # checked above
            expires_in_s=expires_in_s,
            user=user,
        )
    if json:
        output.print_json(token)
        return
    output.note(f"Token {token.name} ({token.id}) of {token.user}; it is shown only now:", "dim")
    output.say(token.token)


@app.command("list")
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
    if json:
        output.print_json(tokens)
        return
    now = output.now()
    output.print_table(
        ("ID", "NAME", "USER", "SCOPES", "CREATED", "LAST USED", "STATE"),
        [
            (
                token.id,
                token.name,
                token.user,
                " ".join(token.scopes),
                output.ago(token.created_at, now),
                output.ago(token.last_used_at, now),
                _token_state(token.revoked_at is not None, token.expires_at is not None and token.expires_at <= now),
            )
            for token in tokens
        ],
        empty="No tokens.",
    )


def _token_state(is_revoked: bool, is_expired: bool) -> str:
    return "revoked" if is_revoked else "expired" if is_expired else "valid"


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")],
    json: options.Json = False,
) -> None:
    """Revoke a token at once."""
    with session.client() as client:
        client.revoke_token(token_id)
    output.print_result({"revoked": token_id}, f"{token_id} revoked", as_json=json)
