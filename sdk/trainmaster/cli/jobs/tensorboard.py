"""``tensorboard``: opens jobs in TensorBoard."""

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
    jobs: Annotated[
        list[str], typer.Argument(metavar="JOB…", help="IDs or names of jobs.", autocompletion=complete_job)
    ],
    browser: Annotated[bool, typer.Option(help="Open the URL in a browser.")] = True,
    json: options.Json = False,
) -> None:
    """Show the event files of jobs in TensorBoard, which the platform starts and stops.

    Prints a URL that grants access without a token, for at most a day; do not share it.
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
    """Whether a graphical browser can be opened, and stdout is a terminal."""
    return sys.stdout.isatty() and bool(
        sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
