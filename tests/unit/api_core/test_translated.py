"""Errors of ours in the words of other systems' clients."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient

from api.gcs.answers import StorageRoute
from api.mlflow.answers import MlflowRoute
from api.translated import TranslatedRoute
from api.vertex.answers import VertexRoute
from core.domain.errors import NotFound, StaleWrite, Unavailable


def asked(route: type[TranslatedRoute], error: Exception) -> Any:
    router = APIRouter(route_class=route)

    @router.get("/it")
    def fail() -> None:
        raise error

    app = FastAPI()
    app.include_router(router)
    return TestClient(app).get("/it")


@pytest.mark.parametrize(
    ("route", "words"),
    [
        (StorageRoute, {"reason": "conflict"}),
        (MlflowRoute, {"error_code": "RESOURCE_CONFLICT"}),
        (VertexRoute, {"status": "ABORTED"}),
    ],
)
def test_who_was_too_slow_is_told_so_and_not_of_a_wrong_value(route, words):
    answer = asked(route, StaleWrite("the run has moved"))
    assert answer.status_code == 409
    told = answer.json()
    error = told.get("error", told)
    assert words.items() <= {**error, **error.get("errors", [{}])[0]}.items()
    assert "try again" in error["message"]


@pytest.mark.parametrize("route", [StorageRoute, MlflowRoute, VertexRoute])
def test_an_error_keeps_its_sentence_and_when_to_come_again(route):
    assert "No such thing" in asked(route, NotFound("No such thing here.")).text
    answer = asked(route, Unavailable("The database is away.", retry_after_s=2.2))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "3")
