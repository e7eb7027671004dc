"""The OpenAPI document of an application."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

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
