"""``policy``: the settings of the scheduling policy. ``reservation``: nodes reserved for one project for a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.wire.scheduling import PolicyView, ReservationView

_PANEL = "Platform"
policy_app = typer.Typer(help="Scheduling policy: queue order, fair share and preemption.", invoke_without_command=True)
reservation_app = typer.Typer(help="Nodes reserved for one project for a time.", invoke_without_command=True)
_NODES_SHOWN: Final = 4


def register(root: typer.Typer) -> None:
    root.add_typer(policy_app, name="policy", rich_help_panel=_PANEL)
    root.add_typer(reservation_app, name="reservation", rich_help_panel=_PANEL)


# --- the policy -----------------------------------------------------------------------------------------------------


@policy_app.callback()
def policy(ctx: typer.Context, json: options.Json = False) -> None:
    """The scheduling policy's settings; alone: show them."""
    if ctx.invoked_subcommand is None:
        with session.client() as client:
            _print_policy(client.get_policy(), as_json=json)


@policy_app.command("set")
def set_policy(
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="SETTING=VALUE…", help="time_slice=20m order=shortest-first; `default` resets a setting."
        ),
    ],
    json: options.Json = False,
) -> None:
    """Change settings (platform admins); they apply from the next scheduling tick."""
    with session.client() as client:
        assignments = options.pairs(settings, "SETTING=VALUE", is_once=True)
        previous = {setting.name: setting.text for setting in client.get_policy().settings}
        view = client.update_policy(assignments)
    if json or session.current().as_json:
        output.print_json(view)
        return
    output.print_changes(previous, {setting.name: setting.text for setting in view.settings})
    output.warn(view.warnings)
    output.note("`trainmaster policy` shows all settings.", "dim")


def _text(value: str) -> str:
    """On a terminal, with spaces in lists so that they wrap; in a pipe, as accepted by `policy set`."""
    return value.replace(",", ", ") if output.answers().is_terminal else value


def _print_policy(view: PolicyView, *, as_json: bool) -> None:
    if as_json or session.current().as_json:
        output.print_json(view)
        return
    output.print_table(
        ("SETTING", "VALUE", "DEFAULT", "MEANING"),
        [
            (
                setting.name,
                _text(setting.text),
                _text(setting.default_text),
                setting.meaning,
            )
            for setting in view.settings
        ],
        empty="",
        wraps=("VALUE", "DEFAULT", "MEANING"),
    )
    output.note_change("Changed", view.updated_at, view.updated_by)
    output.warn(view.warnings)


# --- reservations ---------------------------------------------------------------------------------------------------


@reservation_app.callback()
def reservation(ctx: typer.Context, json: options.Json = False) -> None:
    """Nodes reserved for one project for a time; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_reservations(json=json)


@reservation_app.command("list")
def list_reservations(json: options.Json = False) -> None:
    """List the present and future reservations, by their begin."""
    with session.client() as client:
        reservations = list(client.list_reservations())
    if json or session.current().as_json:
        output.print_json(reservations)
        return
    output.print_table(
        ("ID", "NAME", "PROJECT", "BEGINS", "ENDS", "NOW", "NODES"),
        [
            (
                view.id,
                view.name or "(another project's)",
                view.project,
                output.local_time(view.begins_at),
                output.local_time(view.ends_at),
                "active" if view.is_active else None,
                _nodes(view),
            )
            for view in reservations
        ],
        empty="No reservations.",
    )


@reservation_app.command("create")
def create_reservation(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    nodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODE…", help="Or --select.", autocompletion=options.complete_node, show_default=False),
    ] = None,
    project: options.Project = None,
    selector: Annotated[
        list[str] | None,
        typer.Option("--select", "-s", metavar="LABEL=VALUE", help="Nodes with this label. Repeatable."),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Only N of them, the least used.")] = None,
    begin: Annotated[
        str | None, typer.Option("--from", help="2026-12-01T08:00 (local time), or 2h from now; default: now.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="2026-12-05T18:00 (local time).")] = None,
    duration: Annotated[str | None, typer.Option("--for", help="3d, instead of --until.")] = None,
    json: options.Json = False,
) -> None:
    """Reserve nodes for a project (platform admins): only its jobs run there; others are preempted at the begin."""
    if (until is None) == (duration is None):
        raise typer.BadParameter("say until when, by one of --until and --for", param_hint="--until")
    if bool(nodes) == bool(selector):
        raise typer.BadParameter("name nodes, or give --select LABEL=VALUE; one of the two", param_hint="NODE…")
    if count is not None and nodes:
        raise typer.BadParameter("is only for --select; named nodes are all reserved", param_hint="--count")
    now = output.now()
    begins_at = None if begin is None else _moment(begin, now, "--from")
    ends_at = (
        _moment(until, now, "--until") if until is not None else (begins_at or now) + _span(duration or "", "--for")
    )
    with session.client() as client:
        view = client.create_reservation(
            name,
            project=session.project_or_default(project),
            nodes=nodes or [],
            node_selector=options.pairs(selector or [], "--select"),
            count=count,
            begins_at=begins_at,
            ends_at=ends_at,
        )
    if json:
        output.print_json(view)
        return
    output.say(
        f"{view.id}: {_nodes(view)} for {view.project} from {output.local_time(view.begins_at)} to "
        f"{output.local_time(view.ends_at)}"
    )
    output.warn(view.warnings)


@reservation_app.command("delete")
def delete_reservation(
    reservation: Annotated[
        str, typer.Argument(metavar="ID|NAME", help="ID, or a unique name, as shown by `reservation list`.")
    ],
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """End a reservation at once (platform admins)."""
    if not yes and output.is_interactive():
        typer.confirm(f"Delete the reservation {reservation}?", abort=True, err=True)
    with session.client() as client:
        client.delete_reservation(reservation)
    output.print_result({"deleted": reservation}, f"{reservation} deleted", as_json=json)


def _moment(text: str, now: datetime, option: str) -> datetime:
    """An ISO date, local without an offset, or a duration from now."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return now + _span(text, option)


def _span(text: str, option: str) -> timedelta:
    from trainmaster.spec.quantity import parse_duration_s

    try:
        return timedelta(seconds=parse_duration_s(text))
    except ValueError as error:
        is_too_long = "is not between" in str(error)
        problem = str(error) if is_too_long else f"{text!r} is neither a date nor a duration like 2h or 3d"
        if option == "--for" and not is_too_long:
            problem = f"{text!r} is not a duration; write 2h or 3d"
        raise typer.BadParameter(problem, param_hint=option) from error


def _nodes(view: ReservationView) -> str:
    more = len(view.nodes) - _NODES_SHOWN
    return ", ".join(view.nodes[:_NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")
