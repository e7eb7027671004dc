"""The OpenAPI document. ``python -m api.openapi`` writes ``api/openapi.json``; ``--check`` fails when it is
outdated.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import SecretStr

FILE: Final = Path(__file__).parent / "openapi.json"
_TEXT: Final = (
    "Submit, watch and steer distributed training jobs. Errors are `application/problem+json` with a stable `code`. "
    "Lists are paged by opaque cursors. Programs send `Authorization: Bearer <token>`."
)


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, made once per application."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=_TEXT, routes=app.routes)
        components = schema.setdefault("components", {})
        components["securitySchemes"] = {
            "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "A user's token, or an attempt's for reports.",
            },
            "session": {"type": "apiKey", "in": "cookie", "name": "trainmaster_session"},
        }
        schema["security"] = [{"token": []}, {"session": []}]
        app.openapi_schema = schema
    return app.openapi_schema


def render() -> bytes:
    """The committed document: sorted, so that its diffs are small."""
    # Late: the application imports this module.
    from api.app.factory import create_app
    from core.settings import Settings
    from core.wakeups import NoWakeup

    settings = Settings(database_url="sqlite://", secret_key=SecretStr("unused"), broker_url="")
    schema = describe(create_app(settings, wakeup=NoWakeup()))
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
