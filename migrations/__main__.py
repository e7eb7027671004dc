"""``python -m migrations upgrade``: bring the database of the settings to the newest form.

``python -m migrations bootstrap``: the same, then the first admin, whose token is printed or kept in a file.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from core.db.bootstrap import BadTokenFile, first_admin, prepare_installation
from core.db.engine import make_engine, make_sessions, unit_of_work
from core.domain.errors import Unavailable
from core.settings import BadSettings, Settings, get_settings
from migrations import current_revision, downgrade, head_revision, refused_in_a_sentence, upgrade


def main() -> int:
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
    arguments = parser.parse_args()

    try:
        with refused_in_a_sentence():
            if arguments.command == "bootstrap":
                if arguments.token_file is not None:
                    return _install(get_settings(), arguments.token_file)
                return _bootstrap(get_settings(), is_new_token=arguments.new_token)
            return _run(arguments, get_settings().resolved_database_url)
    except (BadSettings, BadTokenFile) as error:
        print(error, file=sys.stderr)
    except Unavailable as error:
        print(error.sentence, file=sys.stderr)
    except OSError as error:
        print(f"{error.strerror or error}: {error.filename or 'the data folder'}", file=sys.stderr)
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
