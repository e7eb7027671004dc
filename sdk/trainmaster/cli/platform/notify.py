"""``notify``: channels by which people are notified, and what was sent."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.platform.webhook import Events
from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import WrongUse

app = typer.Typer(help="Notify people by Slack, Teams, e-mail, ntfy, …", invoke_without_command=True)

ChannelId = Annotated[str, typer.Argument(metavar="CHANNEL", help="Its id: trainmaster notify list.")]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="notify", rich_help_panel="Platform")


@app.callback()
def notify(ctx: typer.Context, json: options.Json = False) -> None:
    """Channels notify people by Slack, Teams, e-mail, ntfy, …; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_channels(json=json)


@app.command("list")
def list_channels(project: options.Project = None, json: options.Json = False) -> None:
    """List your channels, and those of the projects that you are admin of."""
    with session.client() as client:
        found = list(client.list_notification_channels(project=project))
    if json or session.current().as_json:
        output.print_json(found)
        return
    output.print_table(
        ("ID", "OF", "SERVICE", "EVENTS", "STATUS"),
        [
            (
                view.id,
                view.project or "(your jobs)",
                view.service,
                ", ".join(view.event_types),
                "enabled" if view.is_enabled else "disabled",
            )
            for view in found
        ],
        empty="No channels. Add one: trainmaster notify add ntfys://my-topic",
    )


@app.command("add")
def add_channel(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Of a service of Apprise; - reads it from stdin, out of the history.")
    ],
    project: options.Project = None,
    events: Events = None,
    description: Annotated[str, typer.Option("--description", "-d")] = "",
    json: options.Json = False,
) -> None:
    """Be notified of your own jobs, or with --project notify of a project's events."""
    given = typer.get_text_stream("stdin").readline().strip() if url == "-" else url
    with session.client() as client:
        view = client.create_notification_channel(
            given, project=project, event_types=events or None, description=description
        )
    text = f"Channel {view.id} ({view.service}) gets {', '.join(view.event_types)}."
    output.print_result(view, text, as_json=json)


@app.command("change")
def change_channel(
    channel: ChannelId,
    url: Annotated[str | None, typer.Option("--url")] = None,
    events: Events = None,
    description: Annotated[str | None, typer.Option("--description", "-d")] = None,
    enable: Annotated[bool | None, typer.Option("--enable/--disable")] = None,
    json: options.Json = False,
) -> None:
    """Change URL or events, enable or disable."""
    if url is None and not events and description is None and enable is None:
        raise WrongUse("Nothing to change: give --url, --event, --description, --enable or --disable.")
    with session.client() as client:
        view = client.change_notification_channel(
            channel, url=url, event_types=events or None, description=description, is_enabled=enable
        )
    state = "enabled" if view.is_enabled else "disabled"
    output.print_result(view, f"Channel {view.id} is {state}; it gets {', '.join(view.event_types)}.", as_json=json)


@app.command("delete")
def delete_channel(channel: ChannelId) -> None:
    """Delete a channel."""
    with session.client() as client:
        client.delete_notification_channel(channel)
    output.note(f"Deleted {channel}.")


@app.command("test")
def send_test(channel: ChannelId, json: options.Json = False) -> None:
    """Send a test; `notify history` shows whether the service took it."""
    with session.client() as client:
        view = client.test_notification_channel(channel)
    output.print_result(view, f"Sending a test: trainmaster notify history {channel}", as_json=json)


@app.command("history")
def history(
    channel: ChannelId,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1)] = 50,
    json: options.Json = False,
) -> None:
    """List the newest notifications of a channel."""
    with session.client() as client:
        found = list(client.list_notifications(channel, limit=limit))
    if json or session.current().as_json:
        output.print_json(found)
        return
    output.print_table(
        ("TIME", "STATE", "NOTIFICATION", "ERROR"),
        [(output.local_time(view.created_at), view.state, view.text, view.error) for view in found],
        empty="No notifications.",
    )
