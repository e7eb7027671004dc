"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.terminal import session
from trainmaster.cli.terminal.completion import complete_job, complete_node, complete_project


def _remember_json(value: bool) -> bool:
    session.current().as_json = session.current().as_json or value
    return value


def _remember_context(value: str | None) -> str | None:
    if value is not None:
        session.current().context = value
    return value


Json = Annotated[
    bool,
    typer.Option(
        "--json", callback=_remember_json, is_eager=True, help="JSON on stdout; errors as problem JSON on stderr."
    ),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="Id or name of the job.", autocompletion=complete_job)]
Node = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", autocompletion=complete_node)]
Project = Annotated[
    str | None,
    typer.Option("--project", "-p", help="The project; else your context's.", autocompletion=complete_project),
]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Kept in the history.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def priority_of(text: str | None) -> int | None:
    """The number of ``--priority``: a name's, or the number itself."""
    if text is None:
        return None
    from trainmaster.spec.errors import FieldError
    from trainmaster.spec.priorities import read_priority

    try:
        return read_priority(text)
    except FieldError as wrong:
        raise typer.BadParameter(str(wrong), param_hint="--priority") from wrong
