from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trainmaster_train as tm
from trainmaster_train import checkpoint


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("TRAINMASTER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINMASTER_OUTPUT_DIR", str(tmp_path / "output"))
    return tmp_path / "output"


def write(step: int, *, keep: int | None = 3, text: str = "state", **metrics: float) -> Path:
    (tm.stage_checkpoint(step) / "state.txt").write_text(text)
    return tm.seal_checkpoint(step, metrics, keep=keep)


def names(output: Path) -> list[str]:
    return sorted(path.name for path in (output / "checkpoints").iterdir())


def test_nothing_is_latest_where_nothing_was_written() -> None:
    assert tm.latest() is None


def test_a_sealed_checkpoint_is_the_latest_and_knows_its_step_and_metrics(output: Path) -> None:
    path = write(100, loss=0.25)

    assert path == output / "checkpoints" / "step-00000100"
    assert tm.latest() == path
    assert (path / ".complete").read_bytes() == b""
    assert checkpoint.read_meta(path) == {"step": 100, "metrics": {"loss": 0.25}}


def test_the_latest_is_the_highest_step_and_not_the_last_name(output: Path) -> None:
    write(99_999_999)
    newest = write(100_000_000)

    assert tm.latest() == newest


def test_a_folder_without_its_mark_is_no_checkpoint(output: Path) -> None:
    older = write(100)
    (write(200) / ".complete").unlink()

    assert tm.latest() == older


def test_only_the_newest_stay(output: Path) -> None:
    for step in (10, 20, 30, 40):
        write(step, keep=2)

    assert names(output) == ["step-00000030", "step-00000040"]


def test_a_checkpoint_marked_by_a_user_stays(output: Path) -> None:
    (write(10, keep=2) / ".kept").touch()
    for step in (20, 30, 40):
        write(step, keep=2)

    assert names(output) == ["step-00000010", "step-00000030", "step-00000040"]


def test_none_keeps_all_checkpoints(output: Path) -> None:
    for step in range(1, 7):
        write(step, keep=None)

    assert len(names(output)) == 6


def test_keeping_no_checkpoint_at_all_is_refused() -> None:
    tm.stage_checkpoint(1)

    with pytest.raises(ValueError, match="keep: 0"):
        tm.seal_checkpoint(1, keep=0)


def test_a_training_that_went_back_keeps_what_it_writes_now(output: Path) -> None:
    for step in (100, 200, 300):
        write(step)

    write(50, keep=2)

    assert "step-00000050" in names(output)


def test_writing_the_same_step_again_replaces_it(output: Path) -> None:
    write(100, text="old")
    path = write(100, text="new")

    assert (path / "state.txt").read_text() == "new"
    assert names(output) == ["step-00000100"]


def test_what_a_killed_attempt_left_is_removed_by_the_next(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tm.stage_checkpoint(100) / "half").write_text("…")

    monkeypatch.setenv("TRAINMASTER_ATTEMPT", "2")
    write(200)

    assert names(output) == ["step-00000200"]


def test_two_writers_of_one_attempt_leave_each_others_files_alone(output: Path) -> None:
    (tm.stage_checkpoint(100) / "state.txt").write_text("of the one")
    write(200)
    path = tm.seal_checkpoint(100)

    assert (path / "state.txt").read_text() == "of the one"
    assert names(output) == ["step-00000100", "step-00000200"]


def test_attempts_do_not_share_a_staging_folder_and_the_older_leaves_the_newers_alone(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMASTER_ATTEMPT", "2")
    newer = tm.stage_checkpoint(100)
    monkeypatch.setenv("TRAINMASTER_ATTEMPT", "1")
    older = tm.stage_checkpoint(100)
    assert older != newer
    tm.seal_checkpoint(100)

    assert newer.is_dir()
    assert names(output) == [newer.name, "step-00000100"]


def test_the_checkpoint_that_an_attempt_came_from_is_never_removed(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMASTER_RESUME_FROM", str(write(10)))
    for step in (20, 30, 40):
        write(step, keep=1)

    assert names(output) == ["step-00000010", "step-00000040"]


def test_staging_again_starts_from_an_empty_folder() -> None:
    (tm.stage_checkpoint(100) / "half").write_text("…")

    assert list(tm.stage_checkpoint(100).iterdir()) == []


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        tm.stage_checkpoint(-1)


def test_the_platform_decides_where_to_start_from(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = write(100)
    write(200)
    monkeypatch.setenv("TRAINMASTER_RESUME_FROM", str(wanted))

    assert tm.latest() == wanted


def test_a_missing_resume_point_is_an_error_instead_of_a_fresh_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(100)
    monkeypatch.setenv("TRAINMASTER_RESUME_FROM", str(tmp_path / "gone"))

    with pytest.raises(tm.CheckpointError, match=r"TRAINMASTER_RESUME_FROM: .*gone is not a complete checkpoint"):
        tm.latest()


def test_a_resume_point_that_made_room_for_newer_ones_is_followed_by_the_newest(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (100, 200, 300):
        write(step, keep=1)
    monkeypatch.setenv("TRAINMASTER_RESUME_FROM", str(output / "checkpoints" / "step-00000200"))

    assert tm.latest() == output / "checkpoints" / "step-00000300"
    found = tm.find_checkpoint()

    assert found is not None
    assert found.path == output / "checkpoints" / "step-00000300"
    assert capsys.readouterr().err.count("step-00000200 was pruned in favour of newer ones") == 2
    monkeypatch.setenv("TRAINMASTER_RESUME_FROM", str(output / "checkpoints" / "step-00000400"))
    with pytest.raises(tm.CheckpointError, match="step-00000400 is not a complete checkpoint"):
        tm.latest()
    with pytest.raises(tm.CheckpointError, match="step-00000400 does not exist"):
        tm.find_checkpoint()


def test_a_resume_point_without_its_mark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(100)
    (path / ".complete").unlink()
    monkeypatch.setenv("TRAINMASTER_RESUME_FROM", str(path))

    with pytest.raises(tm.CheckpointError):
        tm.latest()


def test_a_checkpoint_is_reported_with_its_path_under_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMASTER_REPORT_FILE", str(tmp_path / "report.jsonl"))

    write(100, text="12345", loss=0.5)

    line = json.loads((tmp_path / "report.jsonl").read_text())
    meta_bytes = len('{"step": 100, "metrics": {"loss": 0.5}}\n')
    assert line == {
        "kind": "checkpoint",
        "path": "checkpoints/step-00000100",
        "step": 100,
        "metrics": {"loss": 0.5},
        "size_bytes": 5 + meta_bytes,
    }


# A process that dies at a given call to the file system: os.fsync, Path.rename, … are what a writer's life consists of.
KILLED_WRITER = """
import os, pathlib, sys
import trainmaster_train as tm

calls = 0
def counted(original):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == int(sys.argv[1]):
            os._exit(9)
        return original(*args, **kwargs)
    return call

os.fsync = counted(os.fsync)
pathlib.Path.rename = counted(pathlib.Path.rename)
pathlib.Path.mkdir = counted(pathlib.Path.mkdir)
pathlib.Path.write_text = counted(pathlib.Path.write_text)
pathlib.Path.unlink = counted(pathlib.Path.unlink)

(tm.stage_checkpoint(200) / "state.txt").write_text("new")
tm.seal_checkpoint(200, keep=1)
sys.exit(0)
"""


def test_a_writer_killed_at_any_call_leaves_a_whole_checkpoint(output: Path) -> None:
    source = Path(tm.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(source)}
    seen: set[str] = set()
    for call in range(1, 40):
        write(100, keep=None, text="old")
        done = subprocess.run([sys.executable, "-S", "-c", KILLED_WRITER, str(call)], env=environment, check=False)
        newest = tm.latest()
        assert newest is not None
        text = (newest / "state.txt").read_text()
        assert text == {"step-00000100": "old", "step-00000200": "new"}[newest.name]
        seen.add(text)
        for path in (output / "checkpoints").iterdir():
            (path / ".complete").unlink(missing_ok=True)
        if done.returncode == 0:
            break
    else:
        pytest.fail("the writer never came to its end")
    assert seen == {"old", "new"}
