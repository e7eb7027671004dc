"""``projects`` and ``users``."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.completion import complete_project

projects_app = typer.Typer(help="Projects and their members.", invoke_without_command=True)
users_app = typer.Typer(help="Users (platform admins).", invoke_without_command=True)
Project = Annotated[str, typer.Argument(metavar="PROJECT", autocompletion=complete_project)]
User = Annotated[str, typer.Argument(metavar="USER")]


def register(root: typer.Typer) -> None:
    root.add_typer(projects_app, name="projects", rich_help_panel="Platform")
    root.add_typer(users_app, name="users", rich_help_panel="Platform")


# --- projects -------------------------------------------------------------------------------------------------------


@projects_app.callback()
def projects(ctx: typer.Context, json: options.Json = False) -> None:
    """Projects and their members; alone: list them."""
    if ctx.invoked_subcommand is None:
        _list_projects(as_json=json)


@projects_app.command("list")
def list_projects(json: options.Json = False) -> None:
    """List the visible projects with your roles."""
    _list_projects(as_json=json)


def _list_projects(*, as_json: bool) -> None:
    with session.client() as client:
        found = list(client.list_projects())
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("NAME", "YOUR ROLE", "WEIGHT", "DESCRIPTION"),
        [(project.name, project.my_role, f"{project.weight:g}", project.description) for project in found],
        empty="No projects.",
    )


@projects_app.command("create")
def create_project(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    description: Annotated[str, typer.Option("--description")] = "",
    weight: Annotated[float, typer.Option("--weight", help="Weight of its fair share.")] = 1.0,
    json: options.Json = False,
) -> None:
    """Create a project (platform admins)."""
    with session.client() as client:
        view = client.create_project(name, description=description, weight=weight)
    output.print_result(view, f"{view.name} created", as_json=json)


@projects_app.command("update")
def update_project(
    project: Project,
    description: Annotated[str | None, typer.Option("--description")] = None,
    weight: Annotated[float | None, typer.Option("--weight")] = None,
    json: options.Json = False,
) -> None:
    """Change a project's description or weight."""
    with session.client() as client:
        view = client.update_project(project, description=description, weight=weight)
    output.print_result(view, f"{view.name} changed", as_json=json)


@projects_app.command("delete")
def delete_project(project: Project, yes: options.Yes = False, json: options.Json = False) -> None:
    """Delete a project without live jobs."""
    if not yes and output.is_interactive():
        typer.confirm(f"Delete the project {project}?", abort=True, err=True)
    with session.client() as client:
        client.delete_project(project)
    output.print_result({"deleted": project}, f"{project} deleted", as_json=json)


@projects_app.command("members")
def list_members(project: Project, json: options.Json = False) -> None:
    """List a project's members with their roles."""
    with session.client() as client:
        found = list(client.list_members(project))
    if json:
        output.print_json(found)
        return
    output.print_table(("USER", "ROLE"), [(member.user, member.role) for member in found], empty="No members.")


@projects_app.command("grant")
def grant(
    project: Project,
    user: User,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="viewer, member or admin.")] = "member",
    json: options.Json = False,
) -> None:
    """Make a user a member of a project, or change their role."""
    from trainmaster.wire.admin import ProjectRole

    if role not in ("viewer", "member", "admin"):
        raise typer.BadParameter(f"{role!r} is none of viewer, member, admin", param_hint="ROLE")
    with session.client() as client:
        member = client.set_member(project, user, cast("ProjectRole", role))
    output.print_result(member, f"{member.user} is {member.role} of {project}", as_json=json)


@projects_app.command("ungrant")
def ungrant(project: Project, user: User, json: options.Json = False) -> None:
    """Remove a member."""
    with session.client() as client:
        client.remove_member(project, user)
    output.print_result({"removed": user}, f"{user} removed from {project}", as_json=json)


# --- users ----------------------------------------------------------------------------------------------------------


@users_app.callback()
def users(ctx: typer.Context, json: options.Json = False) -> None:
    """Users; alone: list them."""
    if ctx.invoked_subcommand is None:
        _list_users(as_json=json)


@users_app.command("list")
def list_users(json: options.Json = False) -> None:
    """All users."""
    _list_users(as_json=json)


def _list_users(*, as_json: bool) -> None:
    with session.client() as client:
        found = list(client.list_users())
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("NAME", "ROLE", "STATE", "CREATED"),
        [
            (
                user.name,
                "platform admin" if user.is_admin else "user",
                "disabled" if user.disabled_at else "active",
                output.local_time(user.created_at),
            )
            for user in found
        ],
        empty="No users.",
    )


@users_app.command("create")
def create_user(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    admin: Annotated[bool, typer.Option("--admin", help="A platform admin.")] = False,
    json: options.Json = False,
) -> None:
    """Create a user; create a token for them with `token create NAME --user`."""
    with session.client() as client:
        view = client.create_user(name, is_admin=admin)
    output.print_result(
        view, f"{view.name} created; next: trainmaster token create first --user {view.name}", as_json=json
    )


@users_app.command("update")
def update_user(
    user: User,
    admin: Annotated[bool | None, typer.Option("--admin/--no-admin")] = None,
    disabled: Annotated[bool | None, typer.Option("--disable/--enable", help="Block or restore access.")] = None,
    json: options.Json = False,
) -> None:
    """Make a user a platform admin or not, or block their access."""
    with session.client() as client:
        view = client.update_user(user, is_admin=admin, is_disabled=disabled)
    output.print_result(view, f"{view.name} changed", as_json=json)
