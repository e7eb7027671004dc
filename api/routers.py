"""All nouns of the API in one place."""

from __future__ import annotations

import importlib
from typing import Final

from fastapi import APIRouter, Depends, FastAPI

from api.auth import forget_callers

PREFIX: Final = "/api/v1"

# Under /api/v1; each folder's routes.py has a `router`. Asked in this order for whose a request is, so that what comes by the
# hundred each second stands first.
NOUNS: Final = (
    "runtime",
    "jobs",
    "studies",
    "automl",
    "endpoints",
    "optuna",
    "forecasts",
    "queue",
    "attempts",
    "events",
    "logs",
    "series",
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
ROOTS: Final = ("metrics", "mlflow", "gcs", "vertex", "kubeflow", "ray", "tensorboard", "pages")


def include_all(app: FastAPI) -> None:
    for noun in NOUNS:
        _include(app, noun, PREFIX)
    for noun in ROOTS:
        _include(app, noun, "")


def _include(app: FastAPI, noun: str, prefix: str) -> None:
    router: APIRouter = importlib.import_module(f"api.{noun}.routes").router
    changes_callers = noun in ("projects", "users", "tokens")
    after = [Depends(forget_callers, scope="function")] if changes_callers else []
    app.include_router(router, prefix=prefix, dependencies=after)
