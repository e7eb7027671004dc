"""``checkpoints`` and ``checkpoint …``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import Result

Invoke = Callable[..., Result]
AT = "2026-11-21T07:00:00Z"
STEP = {"path": "checkpoints/step-7", "step": 7, "created_at": AT, "format": "dcp", "is_dir": True, "size_bytes": 2048}
TENSOR = {"name": "fc.w", "shape": [2, 3], "dtype": "bfloat16", "count": 6, "size_bytes": 12, "kind": "weight"}
INSIDE = {
    "items": [TENSOR],
    "format": "dcp",
    "tensor_count": 1,
    "found_count": 1,
    "weight_count": 6,
    "weight_bytes": 12,
    "optimizer_bytes": 0,
    "values": {"epoch": 3},
    "notes": ["A file is missing."],
}


@pytest.fixture
def job(server: Any, job_json: Any) -> str:
    server.on("GET", "/jobs/mnist", job_json())
    return "job_1"


def test_the_list_says_what_is_pinned_in_use_or_not_complete(cli: Invoke, server: Any, page: Any) -> None:
    torn = {**STEP, "path": "checkpoints/x.pt", "is_complete": False, "problem": "It is cut short."}
    server.on("GET", "/jobs/mnist/checkpoints", page({**STEP, "is_pinned": True, "is_in_use": True}, torn))
    reported = cli("checkpoints", "mnist", "--incomplete")
    assert reported.exit_code == 0, reported.output
    assert "pinned, in use" in reported.stdout
    assert "It is cut short." in reported.stdout
    assert server.requests[-1].url.params["incomplete"] == "true"


def test_a_list_without_complete_ones_tells_of_those_that_are_not(cli: Invoke, server: Any, page: Any) -> None:
    torn = {**STEP, "is_complete": False, "problem": "There is no .complete in it."}
    server.on("GET", "/jobs/mnist/checkpoints", page(), page(torn, torn), page())
    reported = cli("checkpoints", "mnist").stderr
    assert "No complete checkpoints; 2 incomplete checkpoints" in reported
    assert "`trainmaster checkpoints mnist --incomplete`" in reported
    assert cli("checkpoints", "mnist").stderr == "No checkpoints yet.\n"


def test_show_lists_tensors_and_with_stats_their_figures(cli: Invoke, server: Any, job: str) -> None:
    at = f"/jobs/{job}/checkpoints"
    figures = {"name": "fc.w", "count": 6, "nan_count": 2, "infinite_count": 1, "zero_share": 0.5, "norm": 1.25}
    server.on("GET", f"{at}/tensors", INSIDE).on("GET", f"{at}/statistics", {"items": [figures]})
    reported = cli("checkpoint", "show", "mnist", "checkpoints/step-7", "--stats")
    assert reported.exit_code == 0, reported.output
    for words in ("A file is missing.", "epoch", "2×3", "bfloat16", "50.0%", "1.25"):
        assert words in reported.stdout
    as_json = json.loads(cli("checkpoint", "show", "mnist", "checkpoints/step-7", "--json").stdout)
    assert (as_json["items"][0]["name"], as_json["statistics"]) == ("fc.w", [])


def test_diff_follows_the_pages_and_ends_with_the_layers(cli: Invoke, server: Any, job: str) -> None:
    counts = {"added_count": 1, "removed_count": 0, "reshaped_count": 0, "common_count": 2}
    new = {"name": "new", "kind": "weight", "change": "added", "shape_after": [2]}
    moved = {"name": "fc.w", "kind": "weight", "change": "moved", "relative_norm": 0.125, "cosine": 0.5}
    same = {"name": "fc.b", "kind": "weight", "change": "same"}
    layer = {"layer": "fc", "tensor_count": 2, "relative_norm": 0.25, "cosine": 0.75}
    server.on(
        "GET",
        f"/jobs/{job}/checkpoints/diff",
        {**counts, "items": [new], "next_cursor": "more"},
        {**counts, "items": [moved, same], "layers": [layer]},
    )
    reported = cli("checkpoint", "diff", "mnist", "a", "b")
    assert reported.exit_code == 0, reported.output
    for words in ("added", "0.125", "0.500000", "0.750000"):
        assert words in reported.stdout
    assert "fc.b" not in reported.stdout
    assert "1 unchanged tensor" in reported.stderr
    assert server.requests[-1].url.params["cursor"] == "more"


def test_an_unreadable_one_is_reported_in_the_servers_words(cli: Invoke, server: Any, job: str, problem: Any) -> None:
    answer = problem(422, "checkpoint_unreadable", "a.pt is empty; its writer may not have finished it.")
    server.on("GET", f"/jobs/{job}/checkpoints/tensors", answer)
    reported = cli("checkpoint", "show", "mnist", "a.pt")
    assert reported.exit_code != 0
    assert "its writer may not have finished it" in reported.stderr


@pytest.mark.parametrize(
    ("words", "method", "part"),
    [
        (("keep",), "PUT", "/kept"),
        (("release",), "DELETE", "/kept"),
        (("delete", "--yes"), "DELETE", ""),
    ],
)
def test_keep_release_and_delete_name_the_checkpoint(
    cli: Invoke, server: Any, words: tuple[str, ...], method: str, part: str
) -> None:
    server.on(method, f"/jobs/mnist/checkpoints{part}", httpx.Response(204))
    reported = cli("checkpoint", words[0], "mnist", "checkpoints/step-7", *words[1:])
    assert reported.exit_code == 0, reported.output
    assert "checkpoints/step-7" in reported.stdout
    assert server.requests[-1].url.params["path"] == "checkpoints/step-7"


def test_retention_is_shown_and_set(cli: Invoke, server: Any) -> None:
    at = "/jobs/mnist/checkpoints/retention"
    server.on("GET", at, {}).on("PUT", at, {"last": 3, "best": 1, "metric": "acc", "mode": "max"})
    assert "All checkpoints are kept." in cli("checkpoint", "retention", "mnist").stdout
    reported = cli("checkpoint", "retention", "mnist", "--last", "3", "--best", "1", "--metric", "acc", "--largest")
    assert "the 3 newest; the 1 with the largest acc" in reported.stdout
    assert json.loads(server.requests[-1].content)["mode"] == "max"


def test_download_takes_all_files_of_a_tensorflow_checkpoint(
    cli: Invoke, server: Any, page: Any, job: str, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    prefix = {**STEP, "path": "checkpoints/ckpt-5", "format": "tensorflow", "is_dir": False}
    names = ("ckpt-5.index", "ckpt-5.data-00000-of-00001", "ckpt-50.index", "other.txt")
    files = [{"path": f"checkpoints/{name}", "is_dir": False, "size_bytes": 2, "modified_at": AT} for name in names]
    server.on("GET", f"/jobs/{job}/checkpoints", page(prefix)).on("GET", f"/jobs/{job}/files", page(*files))
    server.on("GET", f"/jobs/{job}/files/content", httpx.Response(200, content=b"ab"))
    reported = cli("checkpoint", "download", "mnist", "checkpoints/ckpt-5", str(tmp_path / "here"))
    assert reported.exit_code == 0, reported.output
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["ckpt-5.data-00000-of-00001", "ckpt-5.index"]


def test_resume_and_clone_take_a_checkpoint(cli: Invoke, server: Any, job_json: Any) -> None:
    server.on("POST", "/jobs/mnist/resume", job_json()).on("POST", "/jobs/mnist/clone", job_json())
    for words in (("resume", "mnist"), ("clone", "mnist")):
        reported = cli(*words, "--checkpoint", "checkpoints/step-7")
        assert reported.exit_code == 0, reported.output
        assert json.loads(server.requests[-1].content)["checkpoint"] == "checkpoints/step-7"
    assert "one job" in cli("resume", "a", "b", "--checkpoint", "x").stderr
