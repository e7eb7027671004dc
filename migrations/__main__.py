"""``python -m migrations upgrade``: bring the database of the settings to the newest form."""

from __future__ import annotations

import argparse
import sys

from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError

from core.db.engine import make_engine
from core.settings import BadSettings, get_settings
from migrations import current_revision, downgrade, head_revision, upgrade


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m migrations", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("upgrade", help="to the newest form").add_argument("revision", nargs="?", default="head")
    commands.add_parser("downgrade", help="back to an older form").add_argument("revision")
    commands.add_parser("current", help="what the database is at")
    arguments = parser.parse_args()

    try:
        return _run(arguments, get_settings().resolved_database_url)
    except BadSettings as error:
        print(error, file=sys.stderr)
    except ArgumentError as error:
        print(f"TRAINMASTER_DATABASE_URL cannot be used: {error}", file=sys.stderr)
    except (OperationalError, InterfaceError) as error:
        # Only the driver's first line: what follows is for programmers, and the URL holds a password.
        said = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else "it does not answer"
        print(f"The database cannot be reached or used ({said}); see TRAINMASTER_DATABASE_URL.", file=sys.stderr)
    return 1


def _run(arguments: argparse.Namespace, url: str) -> int:
    if arguments.command == "upgrade":
        upgrade(url, arguments.revision)
    elif arguments.command == "downgrade":
        downgrade(url, arguments.revision)
    engine = make_engine(url)
    print(f"database at {current_revision(engine) or 'base'}, newest is {head_revision()}")
    engine.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
