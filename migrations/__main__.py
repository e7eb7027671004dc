"""``python -m migrations upgrade``: bring the database of the settings to the newest form."""

from __future__ import annotations

import argparse
import sys

from core.db.engine import make_engine
from core.settings import get_settings
from migrations import current_revision, downgrade, head_revision, upgrade


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m migrations", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("upgrade", help="to the newest form").add_argument("revision", nargs="?", default="head")
    commands.add_parser("downgrade", help="back to an older form").add_argument("revision")
    commands.add_parser("current", help="what the database is at")
    arguments = parser.parse_args()

    url = get_settings().resolved_database_url
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
