"""Tokens that are limited to projects and to kinds of resources, on native routes and in other systems' protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from trainmaster.wire.admin import SCOPES

from api.app.token_scopes import includes, resource_of

SPEC = {"spec": {"name": "digits", "command": "true"}}


def limited(app: FastAPI, by: TestClient, **body: Any) -> TestClient:
    answer = by.post("/api/v1/tokens", json={"name": "ci", **body})
    assert answer.status_code == 201, answer.text
    return TestClient(app, headers={"Authorization": f"Bearer {answer.json()['token']}"})


def refusal(answer: Any, status: int = 403) -> str:
    assert answer.status_code == status, answer.text
    text: str = answer.json()["detail"]
    return text


def test_a_token_of_one_project_sees_no_other(
    app: FastAPI, client: TestClient, as_user: Callable[..., TestClient], submit: Callable[..., str]
) -> None:
    ann = as_user("ann")
    client.post("/api/v1/projects", json={"name": "vision"})
    client.put("/api/v1/projects/vision/members/ann", json={"role": "admin"})
    job = submit(ann, project="default")
    ci = limited(app, ann, projects=["vision"])
    assert ci.get("/api/v1/me").json()["projects"] == {"vision": "admin"}
    assert [each["name"] for each in ci.get("/api/v1/projects").json()["items"]] == ["vision"]
    assert ci.get("/api/v1/jobs").json()["items"] == []
    refusal(ci.get(f"/api/v1/jobs/{job}"), 404)
    refusal(ci.post("/api/v1/jobs", json={"spec": {**SPEC["spec"], "project": "default"}}), 404)
    assert ci.post("/api/v1/jobs", json={"spec": {**SPEC["spec"], "project": "vision"}}).status_code == 201
    assert ci.get("/ray/default/api/jobs/").status_code == 404
    assert ci.get("/v1/projects/default/locations/us-central1/customJobs").status_code == 403
    assert ci.get("/v1/projects/vision/locations/us-central1/customJobs").status_code == 200


def test_what_a_limited_token_creates_is_limited_like_it(
    app: FastAPI, client: TestClient, as_user: Callable[..., TestClient], stranger: TestClient
) -> None:
    ann = as_user("ann")
    client.post("/api/v1/projects", json={"name": "vision"})
    client.put("/api/v1/projects/vision/members/ann", json={"role": "member"})
    ci = limited(app, ann, projects=["vision"])
    assert limited(app, ci).get("/api/v1/me").json()["projects"] == {"vision": "member"}
    refusal(ci.post("/api/v1/tokens", json={"name": "x", "projects": ["default"]}), 404)
    code = ci.post("/api/v1/login/codes").json()["code"]
    login = stranger.post("/api/v1/login", json={"code": code}).json()["token"]
    by_code = TestClient(app, headers={"Authorization": f"Bearer {login}"})
    assert by_code.get("/api/v1/me").json()["projects"] == {"vision": "member"}
    tokens = ann.get("/api/v1/tokens").json()["items"]
    other = next(token["id"] for token in tokens if token["projects"] is None)
    refusal(ci.delete(f"/api/v1/tokens/{other}"), 404)


def test_an_admins_limited_token_does_not_administrate(app: FastAPI, client: TestClient) -> None:
    ci = limited(app, client, projects=["default"])
    assert ci.get("/api/v1/me").json()["is_admin"] is False
    refusal(ci.post("/api/v1/projects", json={"name": "x"}))
    refusal(ci.get("/metrics"))
    both = {"name": "x", "scopes": ["read", "write", "admin"], "projects": ["default"]}
    assert "covers the platform" in refusal(client.post("/api/v1/tokens", json=both), 422)
    client.post("/api/v1/users", json={"name": "bob"})
    for_bob = {"name": "x", "user": "bob", "projects": ["default"]}
    assert "bob is not a member of project default" in refusal(client.post("/api/v1/tokens", json=for_bob), 422)


def test_a_scope_of_jobs_opens_jobs_alone_and_the_refusal_names_the_missing_scope(
    app: FastAPI, as_user: Callable[..., TestClient]
) -> None:
    ann = as_user("ann")
    ci = limited(app, ann, scopes=["jobs:write"])
    job = ci.post("/api/v1/jobs", json=SPEC).json()["id"]
    assert ci.get(f"/api/v1/jobs/{job}/events").status_code == 200
    assert ci.get("/api/v1/me").json()["scopes"] == ["jobs:write"]
    assert "scope read or files:read; yours has jobs:write" in refusal(ci.get(f"/api/v1/jobs/{job}/files"))
    assert "write or models:write" in refusal(ci.post("/api/v1/projects/default/models", json={"name": "m"}))
    for path in ("/api/v1/tokens", "/api/v1/users", "/api/v1/usage"):
        assert "needs a token of scope read; yours" in refusal(ci.get(path))
    refusal(ci.put("/api/v1/projects/default/secrets/KEY", json={"value": "x"}))
    # Other systems' protocols ask the same function.
    assert ci.get("/v1/projects/default/locations/us-central1/customJobs").status_code == 200
    assert "models:read" in ci.get("/v1/projects/default/locations/us-central1/models").json()["error"]["message"]
    assert ci.post("/mlflow/api/2.0/mlflow/experiments/search", json={"max_results": 5}).status_code == 200
    assert "models:read" in ci.get("/mlflow/api/2.0/mlflow/registered-models/search").json()["message"]
    assert ci.get("/storage/v1/b").status_code == 403
    assert ci.get("/ray/default/api/jobs/").status_code == 200
    assert ci.get("/kubernetes/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs").status_code == 200


@pytest.mark.parametrize(
    ("own", "wanted", "status"),
    [
        ("jobs:read", "jobs:write", 403),
        ("jobs:write", "jobs:read", 201),
        ("jobs:write", "files:read", 403),
        ("jobs:write", "read", 403),
        ("write", "jobs:write", 201),
        ("read", "jobs:write", 403),
        ("write", "scim", 403),
    ],
)
def test_scopes_of_a_child_are_within_its_parents(
    as_user: Callable[..., TestClient], own: str, wanted: str, status: int
) -> None:
    assert includes([own], wanted) is (status == 201)
    # To create tokens takes the verb for everything: one of jobs alone creates none.
    ann = as_user("ann", scopes=(own,))
    answer = ann.post("/api/v1/tokens", json={"name": "x", "scopes": [wanted]})
    assert answer.status_code == (status if own == "write" else 403)


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/jobs/x/metrics", "jobs"),
        ("/api/v1/jobs/x/files/content", "files"),
        ("/api/v1/jobs/x/checkpoints", "files"),
        ("/api/v1/projects/vision/models/m", "models"),
        ("/api/v1/projects/vision/endpoints/e/predict", "endpoints"),
        ("/api/v1/projects/vision", "metadata"),
        ("/api/v1/projects/vision/secrets", None),
        ("/api/v1/projects/jobs", "metadata"),
        ("/v1/projects/models/locations/l/customJobs/1", "jobs"),
        ("/v1/projects/p/locations/l/models:upload", "models"),
        ("/v1/projects/p/locations/l/endpoints/1:predict", "endpoints"),
        ("/mlflow/api/2.0/mlflow/model-versions/get", "models"),
        ("/upload/storage/v1/b/vision/o", "files"),
        ("/ray/vision/api/jobs/", "jobs"),
        ("/scim/v2/Users", None),
        ("/metrics", None),
        ("/api/v1", None),
    ],
)
def test_the_kind_of_resource_is_read_off_the_path(path: str, resource: str | None) -> None:
    assert resource_of(path) == resource
    assert resource in (None, "metadata") or f"{resource}:write" in SCOPES
