"""``webhook``: endpoints that events are sent to, and their deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import WrongUse

if TYPE_CHECKING:
    from trainmaster.wire.webhooks import WebhookView, WebhookWithSecret

app = typer.Typer(help="Send events to other systems.", invoke_without_command=True)

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Its id: trainmaster webhook list.")]
Events = Annotated[
    list[str] | None,
    typer.Option("--event", "-e", metavar="TYPE", help="job.failed, job.* or '*' for all. Repeatable."),
]
_LINE: Final = 60


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="webhook", rich_help_panel="Platform")


@app.callback()
def webhook(ctx: typer.Context, json: options.Json = False) -> None:
    """Webhooks send events to other systems; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_webhooks(json=json)


@app.command("list")
def list_webhooks(project: options.Project = None, json: options.Json = False) -> None:
    """List the webhooks of the projects that you are admin of."""
    with session.client() as client:
        found = list(client.list_webhooks(project=project))
    if json or session.current().as_json:
        output.print_json(found)
        return
    output.print_table(
        ("ID", "PROJECT", "URL", "EVENTS", "STATUS", "WAITING", "DEAD"),
        [
            (
                view.id,
                view.project or "(platform)",
                view.url,
                ", ".join(view.event_types),
                "enabled" if view.is_enabled else "disabled",
                str(view.waiting),
                str(view.dead),
            )
            for view in found
        ],
        empty="No webhooks. Add one: trainmaster webhook create https://example.com/hook -e 'job.*' -p PROJECT",
    )


@app.command("create")
def create_webhook(
    url: Annotated[str, typer.Argument(metavar="URL", help="It gets POST requests.")],
    events: Events = None,
    project: options.Project = None,
    platform: Annotated[
        bool, typer.Option("--platform", help="Events of the whole platform (platform admins).")
    ] = False,
    description: Annotated[str, typer.Option("--description", "-d")] = "",
    json: options.Json = False,
) -> None:
    """Send events of a project, or of the platform, to a URL; prints the secret, which is shown this once."""
    if platform and project is not None:
        raise WrongUse("Give one of --project and --platform.")
    with session.client() as client:
        view = client.create_webhook(
            url,
            events or ["job.*"],
            project=None if platform else session.project_or_default(project),
            description=description,
        )
    _print_secret(view, f"Webhook {view.id} gets {', '.join(view.event_types)}.", as_json=json)


@app.command("change")
def change_webhook(
    webhook_id: WebhookId,
    url: Annotated[str | None, typer.Option("--url")] = None,
    events: Events = None,
    description: Annotated[str | None, typer.Option("--description", "-d")] = None,
    enable: Annotated[bool | None, typer.Option("--enable/--disable", help="Send, or keep what waits.")] = None,
    json: options.Json = False,
) -> None:
    """Change URL or events, enable or disable."""
    if url is None and not events and description is None and enable is None:
        raise WrongUse("Nothing to change: give --url, --event, --description, --enable or --disable.")
    with session.client() as client:
        view = client.change_webhook(
            webhook_id, url=url, event_types=events or None, description=description, is_enabled=enable
        )
    state = "enabled" if view.is_enabled else "disabled"
    output.print_result(view, f"Webhook {view.id} is {state}; it gets {', '.join(view.event_types)}.", as_json=json)


@app.command("delete")
def delete_webhook(webhook_id: WebhookId) -> None:
    """Delete a webhook and its deliveries."""
    with session.client() as client:
        client.delete_webhook(webhook_id)
    output.note(f"Deleted {webhook_id}.")


@app.command("rotate")
def rotate_secret(
    webhook_id: WebhookId,
    hours: Annotated[float, typer.Option("--overlap-hours", help="For so long both secrets sign.")] = 24.0,
    json: options.Json = False,
) -> None:
    """Replace the secret; prints the new one, which is shown this once."""
    with session.client() as client:
        view = client.rotate_webhook_secret(webhook_id, overlap_hours=hours)
    _print_secret(view, f"Both secrets sign for {hours:g} hours.", as_json=json)


@app.command("test")
def send_test(webhook_id: WebhookId, json: options.Json = False) -> None:
    """Send a test message; `webhook deliveries` shows what the endpoint answered."""
    with session.client() as client:
        view = client.test_webhook(webhook_id)
    output.print_result(view, f"Sending test {view.id}: trainmaster webhook deliveries {webhook_id}", as_json=json)


@app.command("deliveries")
def list_deliveries(
    webhook_id: WebhookId,
    state: Annotated[str | None, typer.Option("--state", help="waiting, delivered or dead.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1)] = 50,
    json: options.Json = False,
) -> None:
    """List the newest deliveries, with the responses."""
    with session.client() as client:
        found = list(client.list_webhook_deliveries(webhook_id, state=state, limit=limit))
    if json or session.current().as_json:
        output.print_json(found)
        return
    output.print_table(
        ("ID", "TIME", "EVENT", "STATE", "ATTEMPTS", "STATUS", "RESPONSE"),
        [
            (
                str(view.id),
                output.local_time(view.created_at),
                view.event_type,
                view.state,
                str(view.attempts),
                None if view.response_status is None else str(view.response_status),
                (view.error or view.response_excerpt)[:_LINE],
            )
            for view in found
        ],
        empty="No deliveries.",
    )


@app.command("replay")
def replay(
    webhook_id: WebhookId,
    delivery: Annotated[int | None, typer.Argument(metavar="[DELIVERY]", help="Its id.")] = None,
    dead: Annotated[bool, typer.Option("--dead", help="All that failed for more than a day.")] = False,
) -> None:
    """Send a delivery again, or all dead ones."""
    if dead == (delivery is not None):
        raise WrongUse("Give the id of a delivery, or --dead.")
    with session.client() as client:
        ids = (
            [delivery]
            if delivery is not None
            else [view.id for view in client.list_webhook_deliveries(webhook_id, state="dead")]
        )
        for each in sorted(ids):
            client.replay_webhook_delivery(webhook_id, each)
    output.note(f"Sending {output.count(len(ids), 'message')} again.")


def _print_secret(view: WebhookWithSecret | WebhookView, text: str, *, as_json: bool) -> None:
    secret = getattr(view, "secret", "")
    output.print_result(view, f"{text}\nSecret, shown this once: {secret}", as_json=as_json)
