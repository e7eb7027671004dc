"""The list of all routers of the API, by package."""

from __future__ import annotations

import importlib
from typing import Final

from fastapi import APIRouter, Depends, FastAPI

from api.auth import forget_callers

PREFIX: Final = "/api/v1"

# Packages under /api/v1; each package's routes.py has a `router`. Requests are matched in this order, so the busiest
# routes come first.
NOUNS: Final = (
    "runtime",
    "jobs",
    "studies",
    "automl",
    "endpoints",
    "protocols.optuna",
    "forecasts",
    "queue",
    "attempts",
    "events",
    "logs",
    "metrics",
    "checkpoints",
    "models",
    "files",
    "code",
    "archives",
    "nodes",
    "volumes",
    "quotas",
    "projects",
    "policy",
    "vertex_table",
    "reservations",
    "simulations",
    "secrets",
    "users",
    "tokens",
    "spec",
    "login",
    "health",
)
# At the root.
ROOTS: Final = (
    "prometheus",
    "protocols.mlflow",
    "protocols.gcs",
    "protocols.vertex",
    "protocols.kubeflow",
    "protocols.ray",
    "tensorboard",
    "pages",
)


def include_all(app: FastAPI) -> None:
    for noun in NOUNS:
        _include(app, noun, PREFIX)
    for noun in ROOTS:
        _include(app, noun, "")


def _include(app: FastAPI, noun: str, prefix: str) -> None:
    router: APIRouter = importlib.import_module(f"api.{noun}.routes").router
    changes_callers = noun in ("projects", "users", "tokens")
    dependencies = [Depends(forget_callers, scope="function")] if changes_callers else []
    app.include_router(router, prefix=prefix, dependencies=dependencies)
