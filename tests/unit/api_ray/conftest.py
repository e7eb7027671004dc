from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.unit.api_core.conftest import end_attempt, set_job, start

__all__ = ["end_attempt", "set_job", "start"]

API = "/ray/api"


def zipped(files: dict[str, bytes | str], **modes: int) -> bytes:
    """A zip as Ray's client packs a folder. ``modes``: of files by their names."""
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6))
            info.external_attr = modes.get(name, 0o100644) << 16
            archive.writestr(info, data)
    return stored.getvalue()


@pytest.fixture
def sent(client: TestClient) -> Callable[..., str]:
    """``sent(entrypoint="true", …)`` submits as Ray's client does, and gives the submission id."""

    def send(**body: Any) -> str:
        answer = client.post(f"{API}/jobs/", json={"entrypoint": "python train.py", **body})
        assert answer.status_code == 200, answer.text
        submission_id: str = answer.json()["submission_id"]
        return submission_id

    return send
