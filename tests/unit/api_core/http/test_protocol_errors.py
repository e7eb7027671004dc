"""Errors of ours in the words of other systems' clients."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import structlog
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient

from api.protocols.gcs.answers import StorageRoute
from api.protocols.kit.protocol_route import ProtocolRoute
from api.protocols.mlflow.answers import MlflowRoute
from api.protocols.vertex.vertex_route import VertexRoute
from core.db.json import UnstorableValue, dump_json
from core.domain.errors import NotFound, StaleWrite, Unavailable


def requested(route: type[ProtocolRoute], error: Exception) -> Any:
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
def test_who_was_too_slow_is_informed_so_and_not_of_a_wrong_value(route, words):
    answer = requested(route, StaleWrite("the run has moved"))
    assert answer.status_code == 409
    reported = answer.json()
    error = reported.get("error", reported)
    assert words.items() <= {**error, **error.get("errors", [{}])[0]}.items()
    assert "try again" in error["message"]


@pytest.mark.parametrize("route", [StorageRoute, MlflowRoute, VertexRoute])
def test_an_error_keeps_its_sentence_and_when_to_come_again(route):
    assert "No such thing" in requested(route, NotFound("No such thing here.")).text
    answer = requested(route, Unavailable("The database is away.", retry_after_s=2.2))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "3")


@pytest.mark.parametrize(
    ("route", "words"),
    [
        (StorageRoute, {"reason": "internalError"}),
        (MlflowRoute, {"error_code": "INTERNAL_ERROR"}),
        (VertexRoute, {"code": 500, "status": "INTERNAL"}),
    ],
)
def test_a_bug_of_ours_has_that_systems_shape_and_no_traceback(route, words):
    with structlog.testing.capture_logs() as logs:
        answer = requested(route, ValueError("a secret of the code"))
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/json")
    reported = answer.json()
    error = reported.get("error", reported)
    assert words.items() <= {**error, **error.get("errors", [{}])[0]}.items()
    assert "The platform failed unexpectedly" in error["message"]
    assert "secret" not in answer.text
    (line,) = [line for line in logs if line["event"] == "request.failed"]
    assert "a secret of the code" in line["traceback"]


@pytest.mark.parametrize("route", [StorageRoute, MlflowRoute, VertexRoute])
def test_a_full_disk_is_reported_in_that_systems_shape(route):
    answer = requested(route, OSError(errno.ENOSPC, "No space left on device"))
    assert "disk is full" in answer.text
    assert answer.status_code < 500 or answer.status_code == 507


@pytest.mark.parametrize("value", [2**70, -(2**70)], ids=["large", "below"])
def test_a_number_that_no_database_keeps_is_the_clients_to_mend(value):
    with pytest.raises(UnstorableValue) as caught:
        dump_json({"metadata": {"steps": [1, value]}})
    assert caught.value.field == "metadata.steps.1"
    assert requested(VertexRoute, caught.value).json()["error"]["status"] == "INVALID_ARGUMENT"


def test_what_is_nested_too_deep_to_be_written_names_the_place():
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    with pytest.raises(UnstorableValue, match=r"metadata\.a\.a.*nested deeper"):
        dump_json({"metadata": deep})
    with pytest.raises(TypeError):
        dump_json({"metadata": object()})
