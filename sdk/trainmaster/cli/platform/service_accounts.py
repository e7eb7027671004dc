"""``service-account``: users of programs, each of one project, and their tokens."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from trainmaster.cli.platform.access import Scopes, print_tokens, scopes_of
from trainmaster.cli.terminal import options, output, session

app = typer.Typer(help="Service accounts: users of programs, each of one project.", no_args_is_help=True)
token_app = typer.Typer(help="Tokens of a service account.", no_args_is_help=True)
Account = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Its name, with or without @PROJECT.")]
Project = Annotated[
    str | None,
    typer.Option("--project", "-p", help="Default: the context's.", autocompletion=options.complete_project),
]


def register(root: typer.Typer) -> None:
    app.add_typer(token_app, name="token")
    root.add_typer(app, name="service-account", rich_help_panel="Access")


def _project_of(account: str, project: str | None) -> str:
    return project or account.partition("@")[2] or session.current().server().project


@app.command("list")
def list_accounts(project: Project = None, json: options.Json = False) -> None:
    """List a project's service accounts."""
    with session.client() as client:
        accounts = list(client.list_service_accounts(_project_of("", project)))
    if json:
        output.print_json(accounts)
        return
    output.print_table(
        ("NAME", "ROLE", "STATE", "CREATED"),
        [
            (each.name, each.role, "disabled" if each.disabled_at else "active", output.local_time(each.created_at))
            for each in accounts
        ],
        empty="No service accounts.",
    )


@app.command("create")
def create_account(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as ci: it is shown as ci@PROJECT.")],
    project: Project = None,
    role: Annotated[str, typer.Option("--role", help="viewer, member or admin, in this project alone.")] = "member",
    json: options.Json = False,
) -> None:
    """Create a service account (admins of the project)."""
    from trainmaster.wire.admin import ProjectRole

    if role not in ("viewer", "member", "admin"):
        raise typer.BadParameter(f"{role!r} is none of viewer, member, admin", param_hint="--role")
    with session.client() as client:
        view = client.create_service_account(_project_of("", project), name, role=cast("ProjectRole", role))
    next_step = f"next: trainmaster service-account token create {view.name} first"
    output.print_result(view, f"{view.name} created; {next_step}", as_json=json)


@app.command("update")
def update_account(
    account: Account,
    project: Project = None,
    role: Annotated[str | None, typer.Option("--role", help="viewer, member or admin.")] = None,
    disabled: Annotated[bool | None, typer.Option("--disable/--enable", help="Refuse or accept its tokens.")] = None,
    json: options.Json = False,
) -> None:
    """Change the role of a service account, or disable it (admins of the project)."""
    from trainmaster.wire.admin import ProjectRole

    if role not in (None, "viewer", "member", "admin"):
        raise typer.BadParameter(f"{role!r} is none of viewer, member, admin", param_hint="--role")
    with session.client() as client:
        view = client.update_service_account(
            _project_of(account, project), account, role=cast("ProjectRole | None", role), is_disabled=disabled
        )
    output.print_result(view, f"{view.name} changed", as_json=json)


@app.command("delete")
def delete_account(
    account: Account, project: Project = None, yes: options.Yes = False, json: options.Json = False
) -> None:
    """Delete a service account and revoke its tokens; its jobs continue (admins of the project)."""
    if not yes and output.is_interactive():
        typer.confirm(f"Delete the service account {account}? Its jobs continue.", abort=True, err=True)
    with session.client() as client:
        ended = client.delete_service_account(_project_of(account, project), account)
    jobs = f"; {ended.unfinished_jobs} unfinished jobs of it continue, as {ended.user}" if ended.unfinished_jobs else ""
    output.print_result(ended, f"{ended.name} deleted, {ended.revoked_tokens} tokens revoked{jobs}", as_json=json)


@token_app.command("create")
def create_token(
    account: Account,
    name: Annotated[str, typer.Argument(help="Purpose of the token, such as nightly.")],
    project: Project = None,
    scopes: Scopes = None,
    expires_in: Annotated[str | None, typer.Option("--expires-in", help="Such as 12h; default: 90d.")] = None,
    json: options.Json = False,
) -> None:
    """Create a token of a service account. Its text is shown only once."""
    expires_in_s = None if expires_in is None else options.seconds_of(expires_in, "--expires-in")
    with session.client() as client:
        token = client.create_service_account_token(
            _project_of(account, project), account, name, scopes=scopes_of(scopes), expires_in_s=expires_in_s
        )
    if json:
        output.print_json(token)
        return
    output.note(f"Token {token.name} ({token.id}) of {token.user}; it is shown only now:", "dim")
    output.say(token.token)


@token_app.command("list")
def list_tokens(account: Account, project: Project = None, json: options.Json = False) -> None:
    """List the tokens of a service account, without their texts."""
    with session.client() as client:
        tokens = list(client.list_service_account_tokens(_project_of(account, project), account))
    print_tokens(tokens, as_json=json)


@token_app.command("revoke")
def revoke_token(
    account: Account,
    token: Annotated[str, typer.Argument(metavar="ID", help="As shown by `token list`.")],
    project: Project = None,
    json: options.Json = False,
) -> None:
    """Revoke a token of a service account at once."""
    with session.client() as client:
        client.revoke_service_account_token(_project_of(account, project), account, token)
    output.print_result({"revoked": token}, f"{token} revoked", as_json=json)
