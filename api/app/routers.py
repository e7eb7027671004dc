"""The list of all routers of the API, by module."""

from __future__ import annotations

import importlib
from typing import Final

from fastapi import APIRouter, Depends, FastAPI

from api.auth import forget_callers

PREFIX: Final = "/api/v1"

# Modules under /api/v1; each has a `router`. Requests are matched in this order, so the busiest routes come first.
NOUNS: Final = (
    "runtime",
    "jobs.routes",
    "studies.routes",
    "automl.routes",
    "endpoints.routes",
    "protocols.optuna.routes",
    "forecasts.routes",
    "queue",
    "attempts",
    "events.routes",
    "logs.routes",
    "metrics.routes",
    "checkpoints.routes",
    "models.routes",
    "files",
    "jobs.code",
    "archives",
    "nodes",
    "volumes",
    "quotas.routes",
    "projects",
    "policy.routes",
    "vertex_table",
    "reservations",
    "forecasts.simulations",
    "secrets",
    "users",
    "tokens",
    "spec",
    "login",
    "health",
)
# At the root.
ROOTS: Final = (
    "prometheus.routes",
    "protocols.mlflow.routes",
    "protocols.gcs.routes",
    "protocols.vertex.routes",
    "protocols.kubeflow.routes",
    "protocols.ray.routes",
    "tensorboard.routes",
    "pages",
)


def include_all(app: FastAPI) -> None:
    for noun in NOUNS:
        _include(app, noun, PREFIX)
    for noun in ROOTS:
        _include(app, noun, "")


def _include(app: FastAPI, noun: str, prefix: str) -> None:
    router: APIRouter = importlib.import_module(f"api.{noun}").router
    changes_callers = noun in ("projects", "users", "tokens")
    dependencies = [Depends(forget_callers, scope="function")] if changes_callers else []
    app.include_router(router, prefix=prefix, dependencies=dependencies)
