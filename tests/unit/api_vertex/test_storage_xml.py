"""Cloud Storage's XML API is refused by its name, in its own shape, and takes nobody else's addresses."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest
from fastapi.testclient import TestClient

LARGE = b"x" * (5 * 2**20)


@pytest.mark.parametrize(
    ("method", "address", "more"),
    [
        ("PUT", "/data/folder/file.bin", {"content": LARGE}),  # more than a body of other addresses may have
        ("POST", "/data/file.bin?uploads", {}),  # of the client's transfer_manager
        ("PUT", "/data/file.bin?partNumber=1&uploadId=abc", {"content": b"x"}),
        ("GET", "/data/file.bin?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Signature=ab", {}),
        ("GET", "/data/file.bin?GoogleAccessId=me@example.org&Expires=1&Signature=ab", {}),
        ("POST", "/data/file.bin", {"headers": {"x-goog-resumable": "start"}}),
        ("GET", "/data/?list-type=2", {"headers": {"authorization": "GOOG1 key:signature"}}),
        ("GET", "/data", {"headers": {"X-Goog-Date": "20261123T190000Z"}}),
        ("DELETE", "/data/file.bin", {}),
        # A bucket that is called as one of the pages.
        ("PUT", "/jobs/file.bin?X-Goog-Signature=ab", {"content": b"x"}),
    ],
)
def test_it_is_refused_by_its_name(client: TestClient, method: str, address: str, more: dict[str, Any]) -> None:
    answer = client.request(method, address, **more)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (501, "application/xml")
    error = ET.fromstring(answer.content)  # noqa: S314 (our own answer)
    assert (error.tag, error.findtext("Code")) == ("Error", "NotImplemented")
    assert "XML API is not served" in (error.findtext("Message") or "")
    assert error.findtext("Details") == f"{method} {address.partition('?')[0]}"


@pytest.mark.parametrize(
    ("method", "address", "status"),
    [
        ("GET", "/data/file.bin", 404),
        ("PUT", "/api/v1/nothing/here", 404),
        ("PUT", "/api/v1/jobs", 405),
        ("PUT", "/metrics", 405),
        ("GET", "/data/file.bin?x=X-Goog-Signature", 404),
        ("PUT", "/jobs/x", 405),
        ("DELETE", "/studies/x", 405),
        ("DELETE", "/apis/trainer.kubeflow.org/v1alpha1/namespaces/a/trainjobs/b", 404),
        ("PUT", "/ajax-api/2.0/mlflow/runs", 404),
        ("PUT", "/v1alpha1/x", 404),
        ("GET", "/v2/projects", 404),
        ("POST", "/compute/v1/projects/p", 404),
        ("GET", "/data", 404),
    ],
)
def test_other_addresses_stay_what_they_are(client: TestClient, method: str, address: str, status: int) -> None:
    of_any_client = {"x-goog-api-client": "gl-python/3.11", "x-goog-request-params": "a=b", "x-goog-user-project": "p"}
    answer = client.request(method, address, headers=of_any_client)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
