"""``volumes``, ``projects``, ``users`` and ``secrets``."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.wire.admin import VolumeAccess, VolumeView

_PANEL = "Platform"
volumes_app = typer.Typer(help="Registered volumes.", invoke_without_command=True)
projects_app = typer.Typer(help="Projects and their members.", invoke_without_command=True)
users_app = typer.Typer(help="Users (platform admins).", invoke_without_command=True)
secrets_app = typer.Typer(help="A project's secrets, by name.", no_args_is_help=True)
User = Annotated[str, typer.Argument(metavar="USER")]
VolumeName = Annotated[str, typer.Argument(metavar="VOLUME")]
Grantee = Annotated[str, typer.Argument(metavar="PROJECT|everyone", help="everyone: the members of all projects.")]
Prefix = Annotated[str, typer.Option("--prefix", help="Folder of the volume; default: the whole volume.")]
SecretName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the environment variable.")]


def register(root: typer.Typer) -> None:
    root.add_typer(volumes_app, name="volumes", rich_help_panel=_PANEL)
    root.add_typer(projects_app, name="projects", rich_help_panel=_PANEL)
    root.add_typer(users_app, name="users", rich_help_panel=_PANEL)
    root.add_typer(secrets_app, name="secrets", rich_help_panel=_PANEL)


# --- volumes --------------------------------------------------------------------------------------------------------


@volumes_app.callback()
def volumes(ctx: typer.Context, json: options.Json = False) -> None:
    """Registered volumes; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_volumes(json=json)


@volumes_app.command("list")
def list_volumes(json: options.Json = False) -> None:
    """List the volumes that you may use, with your access."""
    with session.client() as client:
        volumes = list(client.list_volumes())
    if json:
        output.print_json(volumes)
        return
    output.print_table(
        ("NAME", "KIND", "ACCESS", "GRANTS", "ROOT"),
        [(volume.name, volume.kind, _access(volume), _grants(volume), volume.root) for volume in volumes],
        empty="No volumes.",
    )


@volumes_app.command("show")
def show_volume(volume: VolumeName, json: options.Json = False) -> None:
    """Show a volume, your access and, to platform admins, its grants."""
    with session.client() as client:
        view = client.get_volume(volume)
    if json:
        output.print_json(view)
        return
    pairs = [("Name", view.name), ("Kind", view.kind), ("Root", view.root), ("Access", _access(view))]
    mounting = output.values_text(view.config) if view.config else None
    output.print_pairs([*pairs, ("Grants", _grants(view)), ("Config", mounting)])


def _access(volume: VolumeView) -> str:
    words = {"read": "read only", "write": "read, write"}
    return "; ".join(
        f"{part.prefix}: {words[part.access]}" if part.prefix else words[part.access] for part in volume.parts
    )


def _grants(volume: VolumeView) -> str | None:
    texts = [f"{g.grantee} {g.access}" + (f" {g.prefix}" if g.prefix else "") for g in volume.grants]
    return "; ".join(texts) or None


@volumes_app.command("grant")
def grant_volume(
    volume: VolumeName,
    grantee: Grantee,
    access: Annotated[str, typer.Argument(metavar="ACCESS", help="read or write.")],
    prefix: Prefix = "",
    json: options.Json = False,
) -> None:
    """Let a project, or the members of all projects, use a volume (platform admins)."""
    with session.client() as client:
        view = client.set_volume_grant(volume, grantee, _valid_access(access, "ACCESS"), prefix=prefix)
    place = f"{volume}/{view.prefix}" if view.prefix else volume
    output.print_result(view, f"{view.grantee} may {view.access} {place}", as_json=json)


@volumes_app.command("revoke")
def revoke_volume(volume: VolumeName, grantee: Grantee, prefix: Prefix = "", json: options.Json = False) -> None:
    """Revoke a grant; submitted jobs keep what they mount (platform admins)."""
    with session.client() as client:
        client.delete_volume_grant(volume, grantee, prefix=prefix)
    place = f"{volume}/{prefix}" if prefix else volume
    output.print_result({"revoked": grantee}, f"the grant of {place} to {grantee} is revoked", as_json=json)


def _valid_access(access: str, hint: str) -> VolumeAccess:
    if access not in ("read", "write"):
        raise typer.BadParameter(f"the right {access!r} is neither read nor write", param_hint=hint)
    return cast("VolumeAccess", access)


def _grant_of(text: str) -> dict[str, str]:
    grantee, _, right = text.partition("=")
    access, _, prefix = right.partition(":")
    return {"grantee": grantee, "access": _valid_access(access, "--grant"), "prefix": prefix}


@volumes_app.command("add")
def add_volume(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name, which jobs use as NAME/path.")],
    root: Annotated[str | None, typer.Option("--root", help="Path on the server, such as /srv/data.")] = None,
    kind: Annotated[str, typer.Option("--kind", help="local, nfs, pvc or csi.")] = "local",
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="KEY=VALUE",
            help="How containers mount it, such as server=…, attributes.bucket=…. Repeatable.",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only")] = False,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            "--grant",
            metavar="PROJECT|everyone=read|write[:PREFIX]",
            help="Who may use it; without any only platform admins. Repeatable.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Register a volume (platform admins)."""
    from trainmaster.client.calls.admin import VolumeKind

    if kind not in ("local", "nfs", "pvc", "csi"):
        raise typer.BadParameter(f"{kind!r} is none of local, nfs, pvc, csi", param_hint="--kind")
    mounting: dict[str, Any] = {}
    for key, value in options.pairs(config or [], "--config").items():
        first, dot, suffix = key.partition(".")
        if dot and first == "attributes":
            mounting.setdefault(first, {})[suffix] = value
        else:
            mounting[key] = value
    grants = [_grant_of(text) for text in grant or []]
    with session.client() as client:
        view = client.create_volume(
            name, kind=cast("VolumeKind", kind), root=root, config=mounting, is_read_only=read_only, grants=grants
        )
    grant_it = f"`trainmaster volumes grant {view.name} PROJECT|everyone read|write`"
    next_step = "" if grants else f"; platform admins alone may use it until {grant_it}"
    output.print_result(view, f"{view.name} registered; jobs use it as {view.name}/path{next_step}", as_json=json)


@volumes_app.command("remove")
def remove_volume(volume: VolumeName, yes: options.Yes = False, json: options.Json = False) -> None:
    """Remove a volume; its files stay (platform admins)."""
    if not yes and output.is_interactive():
        typer.confirm(f"Remove the volume {volume}? Its files stay.", abort=True, err=True)
    with session.client() as client:
        client.delete_volume(volume)
    output.print_result({"removed": volume}, f"{volume} removed", as_json=json)


# --- projects -------------------------------------------------------------------------------------------------------


@projects_app.callback()
def projects(ctx: typer.Context, json: options.Json = False) -> None:
    """Projects and their members; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_projects(json=json)


@projects_app.command("list")
def list_projects(json: options.Json = False) -> None:
    """List the visible projects with your roles."""
    with session.client() as client:
        projects = list(client.list_projects())
    if json:
        output.print_json(projects)
        return
    output.print_table(
        ("NAME", "YOUR ROLE", "WEIGHT", "DESCRIPTION"),
        [(project.name, project.my_role, f"{project.weight:g}", project.description) for project in projects],
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
    project: options.ProjectName,
    description: Annotated[str | None, typer.Option("--description")] = None,
    weight: Annotated[float | None, typer.Option("--weight")] = None,
    json: options.Json = False,
) -> None:
    """Change a project's description or weight."""
    with session.client() as client:
        view = client.update_project(project, description=description, weight=weight)
    output.print_result(view, f"{view.name} changed", as_json=json)


@projects_app.command("delete")
def delete_project(project: options.ProjectName, yes: options.Yes = False, json: options.Json = False) -> None:
    """Delete a project without live jobs."""
    if not yes and output.is_interactive():
        typer.confirm(f"Delete the project {project}?", abort=True, err=True)
    with session.client() as client:
        client.delete_project(project)
    output.print_result({"deleted": project}, f"{project} deleted", as_json=json)


@projects_app.command("members")
def list_members(project: options.ProjectName, json: options.Json = False) -> None:
    """List a project's members with their roles."""
    with session.client() as client:
        members = list(client.list_members(project))
    if json:
        output.print_json(members)
        return
    output.print_table(("USER", "ROLE"), [(member.user, member.role) for member in members], empty="No members.")


@projects_app.command("grant")
def grant(
    project: options.ProjectName,
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
def ungrant(project: options.ProjectName, user: User, json: options.Json = False) -> None:
    """Remove a member."""
    with session.client() as client:
        client.remove_member(project, user)
    output.print_result({"removed": user}, f"{user} removed from {project}", as_json=json)


# --- users ----------------------------------------------------------------------------------------------------------


@users_app.callback()
def users(ctx: typer.Context, json: options.Json = False) -> None:
    """Users; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_users(json=json)


@users_app.command("list")
def list_users(json: options.Json = False) -> None:
    """All users."""
    with session.client() as client:
        users = list(client.list_users())
    if json:
        output.print_json(users)
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
            for user in users
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


# --- secrets: write-only values for jobs ----------------------------------------------------------------------------


@secrets_app.command("set")
def set_secret(name: SecretName, project: options.Project = None, json: options.Json = False) -> None:
    """Store a secret. Its value is read from stdin or a prompt, since arguments are visible to other local users."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,255}", name):
        raise typer.BadParameter(
            f"{name!r} is not a variable name: letters, digits and '_', not starting with a digit, at most 256",
            param_hint="NAME",
        )
    if sys.stdin.isatty():
        value = str(typer.prompt(f"Value of {name}", hide_input=True, err=True))
    else:
        value = sys.stdin.read()
        value = value.removesuffix("\n").removesuffix("\r")  # from `echo`; further newlines belong to the value
    if not value:
        raise typer.BadParameter(f"the value of {name} is empty", param_hint="NAME")
    where = session.project_or_default(project)
    with session.client() as client:
        view = client.set_secret(where, name, value)
    output.print_result(
        view,
        f"{view.name} set in {where}; jobs name it under `secrets` or with `run --secret {view.name}`",
        as_json=json,
    )


@secrets_app.command("list")
def list_secrets(project: options.Project = None, json: options.Json = False) -> None:
    """List the secrets' names."""
    where = session.project_or_default(project)
    with session.client() as client:
        secrets = list(client.list_secrets(where))
    if json:
        output.print_json(secrets)
        return
    output.print_table(
        ("NAME", "CHANGED"),
        [(secret.name, output.local_time(secret.updated_at)) for secret in secrets],
        empty=f"No secrets in {where}.",
    )


@secrets_app.command("delete")
def delete_secret(
    name: SecretName, yes: options.Yes = False, project: options.Project = None, json: options.Json = False
) -> None:
    """Delete a secret; running jobs are not affected."""
    where = session.project_or_default(project)
    if not yes and output.is_interactive():
        typer.confirm(f"Delete the secret {name} of {where}?", abort=True, err=True)
    with session.client() as client:
        client.delete_secret(where, name)
    output.print_result({"deleted": name}, f"{name} deleted from {where}", as_json=json)
