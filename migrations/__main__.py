"""``python -m migrations upgrade``: bring the database of the settings to the newest form.

``python -m migrations bootstrap``: the same, then the first admin, whose token is printed or kept in a file.
``python -m migrations backup|restore FILE``: what ``trainmaster backup`` and ``trainmaster restore`` run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from alembic.util import CommandError

from core import file_locks
from core.db.bootstrap import BadTokenFile, first_admin, prepare_installation
from core.db.engine import make_engine, make_sessions, unit_of_work
from core.domain.errors import Conflict, TrainmasterError
from core.settings import BadSettings, Settings, get_settings
from migrations import current_revision, downgrade, head_revision, refused_in_a_sentence, upgrade
from migrations.backup.make_backup import make_backup
from migrations.backup.restore_backup import restore_backup
from migrations.upgrade_check import check_upgrade

PASSPHRASE_VARIABLE = "TRAINMASTER_BACKUP_PASSPHRASE"  # noqa: S105 (its name)


def main() -> int:
    arguments = _parse()
    try:
        with refused_in_a_sentence():
            return _perform(arguments, get_settings())
    except (BadSettings, BadTokenFile) as error:
        print(error, file=sys.stderr)
    except TrainmasterError as error:
        print(error.sentence, file=sys.stderr)
    except OSError as error:
        print(f"{error.strerror or error}: {error.filename or 'the data folder'}", file=sys.stderr)
    except CommandError as error:
        print(f"There is no such migration ({error}); the newest known one is {head_revision()}.", file=sys.stderr)
    return 1


def _perform(arguments: argparse.Namespace, settings: Settings) -> int:
    match arguments.command:
        case "bootstrap" if arguments.token_file is not None:
            return _install(settings, arguments.token_file)
        case "bootstrap":
            return _bootstrap(settings, is_new_token=arguments.new_token)
        case "backup":
            return _backup(settings, arguments)
        case "restore":
            return _restore(settings, arguments)
        case "check":
            return _check(settings)
    return _run(arguments, settings.resolved_database_url)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m migrations", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("upgrade", help="to the newest form").add_argument("revision", nargs="?", default="head")
    commands.add_parser("downgrade", help="back to an older form").add_argument("revision")
    commands.add_parser("current", help="what the database is at")
    first = commands.add_parser("bootstrap", help="upgrade, and make the first admin, whose token is printed once")
    first.add_argument("--new-token", action="store_true", help="print another token when there is one already")
    first.add_argument(
        "--token-file",
        type=Path,
        help="keep the token in this file instead of printing it, or take it from there; makes the data folders, too",
    )
    commands.add_parser("check", help="what an upgrade to this version would do")
    for name, purpose in (("backup", "write a backup while the platform runs"), ("restore", "restore a backup")):
        command = commands.add_parser(name, help=purpose)
        command.add_argument("file", type=Path)
        command.add_argument("--passphrase-file", type=Path, help=f"default: the variable {PASSPHRASE_VARIABLE}")
        command.add_argument("--force", action="store_true", help="replace what is there")
        if name == "backup":
            command.add_argument("--with-outputs", action="store_true", help="with the default volume's files")
    return parser.parse_args()


def _backup(settings: Settings, arguments: argparse.Namespace) -> int:
    now = datetime.now(UTC)  # noqa: TID251 - the edge
    summary = make_backup(
        settings, arguments.file, _passphrase(arguments), now,
        with_outputs=arguments.with_outputs, replaces=arguments.force,
    )  # fmt: skip
    print(json.dumps(asdict(summary), default=str))
    return 0


def _restore(settings: Settings, arguments: argparse.Namespace) -> int:
    now = datetime.now(UTC)  # noqa: TID251 - the edge
    passphrase = _passphrase(arguments)
    with _no_platform_on(settings.home):
        summary = restore_backup(settings, arguments.file, passphrase, now, replaces=arguments.force)
    print(json.dumps(asdict(summary)))
    return 0


@contextmanager
def _no_platform_on(home: Path) -> Iterator[None]:
    """No embedded platform may run, or start, on the data folder meanwhile: see ``embedded.lock``, which the control
    plane's image has not.
    """
    path = home / "run" / "up.lock"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not file_locks.try_lock(fd):
            raise Conflict(f"A platform already runs on {home}; stop it with `trainmaster down`, and restore then.")
        yield
    finally:
        os.close(fd)


def _check(settings: Settings) -> int:
    check = check_upgrade(settings, datetime.now(UTC))  # noqa: TID251 - the edge
    print(json.dumps(asdict(check), default=str))
    return 0


def _passphrase(arguments: argparse.Namespace) -> str:
    if arguments.passphrase_file is not None:
        return str(arguments.passphrase_file.read_text(encoding="utf-8").strip())
    return os.environ.get(PASSPHRASE_VARIABLE, "")


def _run(arguments: argparse.Namespace, url: str) -> int:
    if arguments.command == "upgrade":
        upgrade(url, arguments.revision)
    elif arguments.command == "downgrade":
        downgrade(url, arguments.revision)
    engine = make_engine(url)
    print(f"database at {current_revision(engine) or 'base'}, newest is {head_revision()}")
    engine.dispose()
    return 0


def _install(settings: Settings, token_file: Path) -> int:
    upgrade(settings.resolved_database_url)
    engine = make_engine(settings.resolved_database_url)
    now = datetime.now(UTC)  # noqa: TID251 - the edge
    is_new = prepare_installation(make_sessions(engine), settings, now, token_file)
    engine.dispose()
    print(
        f"The admin's token is in {token_file}" + ("" if is_new else "; the platform knows it already"), file=sys.stderr
    )
    return 0


def _bootstrap(settings: Settings, *, is_new_token: bool) -> int:
    upgrade(settings.resolved_database_url)
    engine = make_engine(settings.resolved_database_url)
    now = datetime.now(UTC)  # noqa: TID251 - the edge
    with unit_of_work(make_sessions(engine)) as session:
        token = first_admin(session, settings, now, is_new_token=is_new_token)
    engine.dispose()
    if token is None:
        print("There is an admin with a token already; --new-token makes another.", file=sys.stderr)
        return 0
    print("The admin's token, shown this once; keep it, and log in with `trainmaster login`:", file=sys.stderr)
    print(token)
    return 0


if __name__ == "__main__":
    sys.exit(main())
