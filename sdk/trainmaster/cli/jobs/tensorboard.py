"""``tensorboard``: jobs side by side in TensorBoard, in a browser."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.completion import complete_job

_PANEL = "Output"


def register(root: typer.Typer) -> None:
    root.command("tensorboard", rich_help_panel=_PANEL)(tensorboard)


def tensorboard(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB…", help="Ids or names.", autocompletion=complete_job)],
    browser: Annotated[bool, typer.Option(help="Open it, where there is a browser.")] = True,
    json: options.Json = False,
) -> None:
    """Show the event files of jobs in TensorBoard, which the platform starts and ends by itself.

    Prints an address that needs no token, for this browser alone: whoever has it may look, for a day at most.
    """
    with session.client() as client:
        link = client.open_tensorboard(jobs)
        url = f"{client.url}{link.path}"
    if json:
        output.print_json({**link.model_dump(mode="json"), "url": url})
        return
    output.answers().print(url, soft_wrap=True, markup=False, highlight=False)
    if browser and _has_screen():
        import webbrowser

        webbrowser.open(url)


def _has_screen() -> bool:
    """A pipe wants the address alone, and a browser in a terminal would take it over."""
    return sys.stdout.isatty() and bool(
        sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
