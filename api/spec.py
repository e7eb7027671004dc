"""The JSON Schema of the job spec."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from trainmaster.spec import spec_json_schema

from api.http.routing import new_router

router = new_router("spec", "/spec")


@lru_cache(maxsize=1)
def _schema() -> dict[str, Any]:
    return spec_json_schema()


@router.get("/schema", operation_id="get_spec_schema", summary="JSON Schema of the job spec")
def get_spec_schema() -> dict[str, Any]:
    """For editors: the schema of a spec file, shorthands included. Needs no token, since editors fetch it by URL."""
    return _schema()
