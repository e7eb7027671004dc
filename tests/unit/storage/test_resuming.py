"""Which checkpoint of another job a clone or a trial begins with."""

from __future__ import annotations

import io
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core.domain.errors import InvalidRequest
from core.storage.resume_sources import ReportedCheckpoint, Resumable
from core.storage.tree import Tree

AT = datetime(2026, 1, 1, tzinfo=UTC)


def folder(root: Path, name: str, *files: str) -> None:
    for file in files:
        path = root / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def whole_file() -> bytes:
    """As torch writes one: a zip file."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("data", "0" * 500)
    return written.getvalue()


def newest(root: Path, *reported: ReportedCheckpoint) -> str | None:
    try:
        return Resumable("parent", reported, Tree(root.parent).below(root.name)).newest().removeprefix("/data/resume/")
    except InvalidRequest:
        return None


def test_a_file_that_is_being_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/step-8.pt").write_bytes(whole_file())
    (tmp_path / "checkpoints/step-9.pt").write_bytes(whole_file()[:300])
    reported = ReportedCheckpoint("checkpoints/step-9.pt", 9, AT)
    assert newest(tmp_path) == newest(tmp_path, reported) == "checkpoints/step-8.pt"


def test_what_was_reported_counts_while_it_is_there(tmp_path: Path) -> None:
    folder(tmp_path, "checkpoints/step-7", "weights")
    folder(tmp_path, "checkpoints/step-5", ".complete")
    reported = [ReportedCheckpoint(f"checkpoints/step-{step}", step, AT) for step in (9, 8, 7)]
    # Of a folder the job's word counts, too.
    assert newest(tmp_path, *reported) == "checkpoints/step-7"
    assert newest(tmp_path) == "checkpoints/step-5"
    assert newest(tmp_path, reported[0], ReportedCheckpoint("best", None, AT)) == "checkpoints/step-5"
    assert newest(tmp_path / "nothing", *reported) is None
    assert Resumable("parent", tuple(reported), None).newest() == "/data/resume/checkpoints/step-9"


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("checkpoints/checkpoint-500", ["model.safetensors", "config.json", "trainer_state.json"]),
        ("checkpoint-500", ["model.safetensors", "config.json", "trainer_state.json"]),
        ("checkpoints/step-500", [".metadata", "__0_0.distcp"]),
    ],
)
def test_checkpoints_of_other_frameworks_count(tmp_path: Path, name: str, files: list[str]) -> None:
    folder(tmp_path, name, *files)
    assert newest(tmp_path) == name
    (tmp_path / name / files[0 if files[0] == ".metadata" else 2]).unlink()
    assert newest(tmp_path) is None


def test_what_a_training_came_to_and_its_settings_are_no_state_of_it(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/args.json").write_text("{}")
    (tmp_path / "model.pt").write_bytes(whole_file())
    folder(tmp_path, "export", "model.safetensors", "config.json")
    assert newest(tmp_path) is None
    (tmp_path / "checkpoints/step-3.json").write_text("{}")
    assert newest(tmp_path) == "checkpoints/step-3.json"


def test_in_place_of_one_that_is_gone_the_next_one_is_taken(tmp_path: Path) -> None:
    for step in (3, 7, 8, 9):
        folder(tmp_path, f"checkpoints/step-{step}", ".complete")
    parent = Resumable("parent", (), Tree(tmp_path))
    given = [
        parent.replacement_for(f"/data/resume/checkpoints/{name}").rpartition("/")[2]
        for name in ("step-5", "step-12", "best")
    ]
    assert given == ["step-7", "step-9", "step-9"]
