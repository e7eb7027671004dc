"""``reservation``: nodes reserved for one project for a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.completion import complete_node

if TYPE_CHECKING:
    from trainmaster.wire.reservations import ReservationView

app = typer.Typer(help="Nodes reserved for one project for a time.", invoke_without_command=True)
_NODES_SHOWN: Final = 4


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="reservation", rich_help_panel="Platform")


@app.callback()
def reservation(ctx: typer.Context, json: options.Json = False) -> None:
    """Nodes reserved for one project for a time; alone: list them."""
    if ctx.invoked_subcommand is None:
        _list(as_json=json)


@app.command("list")
def list_reservations(json: options.Json = False) -> None:
    """List the present and future reservations, by their begin."""
    _list(as_json=json)


def _list(*, as_json: bool) -> None:
    with session.client() as client:
        found = list(client.list_reservations())
    if as_json or session.current().as_json:
        output.print_json(found)
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
            for view in found
        ],
        empty="No reservations.",
    )


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    nodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODE…", help="Or --select.", autocompletion=complete_node, show_default=False),
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
    from trainmaster.cli.terminal.values import pairs

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
            node_selector=pairs(selector or [], "--select"),
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
    for warning in view.warnings:
        output.note(f"Warning: {warning}", "yellow")


@app.command()
def delete(
    reservation: Annotated[
        str, typer.Argument(metavar="ID|NAME", help="ID, or a unique name, as shown by `reservation list`.")
    ],
    json: options.Json = False,
) -> None:
    """End a reservation at once (platform admins)."""
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
        what = str(error) if is_too_long else f"{text!r} is neither a date nor a duration like 2h or 3d"
        if option == "--for" and not is_too_long:
            what = f"{text!r} is not a duration; write 2h or 3d"
        raise typer.BadParameter(what, param_hint=option) from error


def _nodes(view: ReservationView) -> str:
    more = len(view.nodes) - _NODES_SHOWN
    return ", ".join(view.nodes[:_NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")
