"""The OpenAPI document. ``python -m api.openapi`` writes ``api/openapi.json``; ``--check`` fails when it is
outdated.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import orjson
from pydantic import SecretStr

from api.app.factory import create_app
from core.settings import Settings
from core.wakeups import NoWakeup

FILE: Final = Path(__file__).parent / "openapi.json"


def render() -> bytes:
    """The committed document: sorted, so that its diffs are small."""
    settings = Settings(database_url="sqlite://", secret_key=SecretStr("unused"), broker_url="")
    schema = create_app(settings, wakeup=NoWakeup()).openapi()
    return orjson.dumps(schema, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m api.openapi", description="Write api/openapi.json.")
    parser.add_argument("--check", action="store_true", help="only check that it matches the code")
    options = parser.parse_args(arguments)
    document = render()
    if options.check:
        if FILE.exists() and FILE.read_bytes() == document:
            return 0
        sys.stderr.write("api/openapi.json does not match the code; run `python -m api.openapi` and commit it\n")
        return 1
    FILE.write_bytes(document)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
