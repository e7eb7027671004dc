"""``policy``: the settings of the scheduling policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.wire.policy import PolicyView

app = typer.Typer(help="Scheduling policy: queue order, fair share and preemption.", invoke_without_command=True)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="policy", rich_help_panel="Platform")


@app.callback()
def policy(ctx: typer.Context, json: options.Json = False) -> None:
    """The scheduling policy's settings; alone: show them."""
    if ctx.invoked_subcommand is None:
        with session.client() as client:
            _print(client.get_policy(), as_json=json)


@app.command("set")
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
    from trainmaster.cli.terminal.values import pairs

    with session.client() as client:
        given = pairs(settings, "SETTING=VALUE", is_once=True)
        previous = {setting.name: setting.text for setting in client.get_policy().settings}
        view = client.update_policy(given)
    if json or session.current().as_json:
        output.print_json(view)
        return
    changed = [setting for setting in view.settings if previous.get(setting.name) != setting.text]
    for setting in changed:
        output.say(f"{setting.name}: {previous.get(setting.name, '–')} → {setting.text}")
    if not changed:
        output.note("No changes.", "dim")
    _warn(view)
    output.note("`trainmaster policy` shows all settings.", "dim")


def _text(value: str) -> str:
    """On a terminal, with spaces in lists so that they wrap; in a pipe, as accepted by `policy set`."""
    return value.replace(",", ", ") if output.answers().is_terminal else value


def _print(view: PolicyView, *, as_json: bool) -> None:
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
    if view.updated_at is not None:
        by = f" by {view.updated_by}" if view.updated_by else ""
        output.note(f"Changed{by} {output.local_time(view.updated_at)}.", "dim")
    _warn(view)


def _warn(view: PolicyView) -> None:
    for warning in view.warnings:
        output.note(f"Warning: {warning}", "yellow")
