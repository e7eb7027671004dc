"""``trainmaster backup``, ``restore`` and ``upgrade``: on the platform's machine, with its settings."""

from __future__ import annotations

import json as json_module
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trainmaster.cli.platform.updown import Home, data_folder, last_sentence, server_command
from trainmaster.cli.terminal import options, output
from trainmaster.cli.terminal.exits import WrongUse
from trainmaster.errors import TrainmasterError
from trainmaster.sizes import format_size

_PANEL = "Platform"
_VARIABLE: Final = "TRAINMASTER_BACKUP_PASSPHRASE"
_MISSING_SHOWN: Final = 5
PassphraseFile = Annotated[
    Path | None,
    typer.Option("--passphrase-file", help=f"File with the passphrase; default: {_VARIABLE}, else it is asked for."),
]


class MaintenanceRefused(TrainmasterError):
    """A backup, restore or check that the platform refused; the message is the platform's."""

    code = "refused"


def register(root: typer.Typer) -> None:
    for command in (backup, restore, upgrade):
        root.command(rich_help_panel=_PANEL)(command)


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write, such as monday.tmbackup.")],
    passphrase_file: PassphraseFile = None,
    with_outputs: Annotated[
        bool, typer.Option("--with-outputs", help="With the outputs of jobs on the default volume.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    home: Home = None,
    json: options.Json = False,
) -> None:
    """Back up the platform into one file, while it and its jobs run.

    It has the database, code archives, model versions, and the key of the secrets, which the passphrase protects.
    """
    options_given = [*(["--with-outputs"] if with_outputs else []), *(["--force"] if force else [])]
    arguments = ["backup", *options_given, *_shared(file, passphrase_file, confirm=True)]
    with output.busy("Backing up"):
        summary = _run(arguments, home, passphrase_file)
    if json:
        output.print_json(summary)
        return
    size = format_size(summary["size_bytes"])
    output.say(f"{file}: {size}, {summary['rows']:,} rows and {output.count(summary['files'], 'file')}.")
    for note in summary["notes"]:
        output.note(note, "dim")
    if missing := summary["missing"]:
        shown = ", ".join(missing[:_MISSING_SHOWN]) + (" …" if len(missing) > _MISSING_SHOWN else "")
        output.note(f"{output.count(len(missing), 'file')} could not be read: {shown}.", "yellow")


def restore(
    file: Annotated[Path, typer.Argument(help="A file of `trainmaster backup`.")],
    passphrase_file: PassphraseFile = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a platform that has users or jobs; they are lost.")
    ] = False,
    home: Home = None,
    json: options.Json = False,
) -> None:
    """Restore a backup, also into the other kind of database. The platform must be stopped.

    Jobs that ran in the backup start their next attempt, from their last checkpoint.
    """
    arguments = ["restore", *(["--force"] if force else []), *_shared(file, passphrase_file, confirm=False)]
    with output.busy("Restoring"):
        summary = _run(arguments, home, passphrase_file)
    if json:
        output.print_json(summary)
        return
    output.say(
        f"Restored the backup of {summary['created_at'][:16].replace('T', ' ')} UTC (version {summary['version']}): "
        f"{summary['rows']:,} rows and {output.count(summary['files'], 'file')}."
    )
    if summary["fenced"]:
        output.note(f"{output.count(summary['fenced'], 'attempt')} ran in the backup: their jobs start again.")
    output.note("Start the platform now, such as with `trainmaster up`.", "dim")


def upgrade(
    check: Annotated[bool, typer.Option("--check", help="Say what the upgrade would do, and change nothing.")] = False,
    home: Home = None,
    json: options.Json = False,
) -> None:
    """What an upgrade to the installed version would do: migrations, versions, live jobs, disk, backup.

    The upgrade itself is the first start of the new version. Fails if that would be refused.
    """
    if not check:
        raise WrongUse("Install the new version, run `trainmaster upgrade --check`, then start the platform with it.")
    found = _run(["check"], home)
    if json:
        output.print_json(found)
    else:
        pending = [f"{step['migration']} {step['purpose']}" for step in found["pending"]]
        output.print_pairs(
            [
                ("Version", found["version"]),
                ("Database", f"{found['migration'] or 'new'}, newest is {found['newest']}"),
                ("Migrations", "\n".join(pending) or "none"),
                ("Live jobs", f"{found['live_jobs']}; they go on" if found["live_jobs"] else "none"),
                ("Size", f"{format_size(found['database_bytes'])}, free {format_size(found['free_bytes'])}"),
                ("Last backup", (found["last_backup_at"] or "unknown")[:16]),
            ]
        )
        for warning in found["warnings"]:
            output.note(warning, "yellow")
    if found["problems"]:
        raise MaintenanceRefused(" ".join(found["problems"]))


def _shared(file: Path, passphrase_file: Path | None, *, confirm: bool) -> list[str]:
    if passphrase_file is not None:
        return [str(file.absolute()), "--passphrase-file", str(passphrase_file.absolute())]
    if not os.environ.get(_VARIABLE) and sys.stdin.isatty():
        os.environ[_VARIABLE] = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return [str(file.absolute())]


def _run(arguments: list[str], home: Path | None, passphrase_file: Path | None = None) -> dict[str, Any]:
    environment = {**os.environ}
    if home is not None or "TRAINMASTER_HOME" not in environment:
        environment["TRAINMASTER_HOME"] = str(data_folder(home))
    if passphrase_file is not None:
        environment.pop(_VARIABLE, None)
    result = subprocess.run(
        server_command("migrations", arguments), capture_output=True, text=True, check=False, cwd="/", env=environment
    )
    if result.returncode != 0:
        raise MaintenanceRefused(last_sentence(result.stderr or result.stdout))
    summary: dict[str, Any] = json_module.loads(result.stdout)
    return summary
