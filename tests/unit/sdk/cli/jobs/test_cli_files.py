"""cp, files and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from typer.testing import Result

Invoke = Callable[..., Result]


def test_cp_copies_a_folder_as_cp_does(cli: Invoke, server: Any, page: Any, tmp_path: Path, job_json: Any) -> None:
    at = "2026-11-21T07:00:00Z"

    def listing(request: httpx.Request) -> httpx.Response:
        tree = {
            "": [{"path": "model", "is_dir": True, "size_bytes": 0, "modified_at": at}],
            "model": [
                {"path": "model/a.bin", "is_dir": False, "size_bytes": 3, "modified_at": at},
                {"path": "model/deep", "is_dir": True, "size_bytes": 0, "modified_at": at},
                {"path": "model/loop", "is_dir": True, "is_link": True, "size_bytes": 0, "modified_at": at},
            ],
            "model/deep": [{"path": "model/deep/b.bin", "is_dir": False, "size_bytes": 3, "modified_at": at}],
        }
        return httpx.Response(200, json=page(*tree[request.url.params.get("path", "")]))

    server.on("GET", "/jobs/mnist", job_json())
    server.on("GET", "/jobs/job_1/files", listing)
    server.on("GET", "/jobs/job_1/files/content", lambda request: httpx.Response(200, text=request.url.params["path"]))
    copied = cli("cp", "mnist:model", str(tmp_path))
    assert copied.exit_code == 0
    assert "1 link to a folder was skipped" in copied.stderr
    assert (tmp_path / "model" / "deep" / "b.bin").read_text() == "model/deep/b.bin"
    assert cli("cp", "mnist:model/a.bin", str(tmp_path / "renamed")).exit_code == 0
    assert (tmp_path / "renamed").read_text() == "model/a.bin"
    absent = cli("cp", "mnist:model/nope", str(tmp_path))
    assert absent.exit_code == 5
    assert "The output of job_1 has no model/nope" in absent.stderr


def test_cp_writes_a_file_to_stdout_and_no_folder(cli: Invoke, server: Any, job_json: Any, page: Any) -> None:
    at = "2026-11-21T07:00:00Z"
    entries = [
        {"path": "model", "is_dir": True, "size_bytes": 0, "modified_at": at},
        {"path": "a.bin", "is_dir": False, "size_bytes": 3, "modified_at": at},
    ]

    def listing(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=page(*(entries if not request.url.params.get("path") else [])))

    server.on("GET", "/jobs/mnist", job_json())
    server.on("GET", "/jobs/job_1/files", listing)
    server.on("GET", "/jobs/job_1/files/content", httpx.Response(200, content=b"\x00\xff\n"))
    done = cli("cp", "mnist:a.bin", "-")
    assert (done.exit_code, done.stdout_bytes) == (0, b"\x00\xff\n")
    assert done.stderr == ""
    refused = cli("cp", "mnist:model", "-", "--json")
    assert refused.exit_code == 2
    assert "model is a folder" in json.loads(refused.stderr)["detail"]
