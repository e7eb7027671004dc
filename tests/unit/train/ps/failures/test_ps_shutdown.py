"""A ps that is stopped leaves its shard, and takes it up where that fits."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import trainmaster_train as tm
from trainmaster_train.context import Context

torch = pytest.importorskip("torch")

from trainmaster_train.ps import Options, roles  # noqa: E402
from trainmaster_train.ps.checkpoint import shard_checkpoint  # noqa: E402
from trainmaster_train.ps.checkpoint.shard_writer import ShardWriter  # noqa: E402
from trainmaster_train.ps.layout import layout_of  # noqa: E402
from trainmaster_train.ps.server.sessions import WorkerRequest, WorkerSession  # noqa: E402
from trainmaster_train.ps.server.shard import Shard  # noqa: E402

from tests.unit.train.ps.loopback import WITHIN_S, full_disk, make_model, sgd  # noqa: E402
from tests.unit.train.ps.processes import Gang  # noqa: E402


@pytest.fixture
def context(output: Path) -> Context:
    return Context(role="ps", rank=None, job_id="job-1", attempt=2, output_dir=output)


def shard_of(ps: int = 0, count: int = 1, *, version: int = 0, value: float = 0.0) -> Shard:
    model = make_model()
    shard = Shard(layout_of(model, sgd(model)), sgd(model), ps, count)
    for block in shard.values:
        block.fill_(value)
    shard.version = version
    return shard


def value_of(shard: Shard) -> float:
    return float(shard.values[0][0])


def checkpoint(*versions: int, value: float) -> Path:
    step = versions[0]
    folder = tm.stage_checkpoint(step)
    for ps, version in enumerate(versions):
        shard = shard_of(ps, len(versions), version=version, value=value)
        about = {"ps": ps, "count": len(versions), "version": version, "signature": dict(shard.layout.signature)}
        shard_checkpoint.write_shard(folder, shard.state(), about)
    return tm.seal_checkpoint(step, keep=None)


@pytest.mark.parametrize("damage", ["short", "gone", "spoilt"])
def test_a_ps_goes_on_from_the_one_before_a_damaged_checkpoint(
    context: Context, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    older, newer = checkpoint(10, value=1.0), checkpoint(20, value=2.0)
    file = newer / "shard-00000-of-00001.pt"
    if damage == "short":
        os.truncate(file, 100)
    elif damage == "gone":
        file.unlink()
    else:
        file.write_bytes(bytes(file.stat().st_size))
    shard = shard_of()

    assert roles._restore(shard, context, Options())

    assert (shard.version, value_of(shard)) == (10, 1.0)
    out = capsys.readouterr().out
    assert f"ps 0: {file}" in out
    assert "; trying the one before it." in out
    shard_checkpoint.save_shard(shard_of(version=25, value=2.5), context)
    assert roles._restore(shard, context, Options())
    assert (shard.version, value_of(shard)) == (25, 2.5), "newer than all that is whole"
    shard_checkpoint.remove_saved_shard(shard, context)
    for path in older.glob("shard-*"):
        path.unlink()
    with pytest.raises(tm.CheckpointError, match=re.escape(str(file))):
        roles._restore(shard_of(), context, Options())


def test_what_is_left_is_taken_up_with_the_optimizers_state(context: Context) -> None:
    before = shard_of(version=7)
    before.apply([torch.ones_like(block) for block in before.values], {})
    shard_checkpoint.save_shard(before, context)

    after = shard_of()
    assert shard_checkpoint.restore_saved_shard(after, context, mode="async", start=None)

    assert after.version == 8
    for one in (before, after):
        one.apply([torch.ones_like(block) for block in one.values], {})
    assert value_of(after) == value_of(before), "with its momentum"
    assert [path.name for path in (context.checkpoint_dir / shard_checkpoint.STOPPED_FOLDER).iterdir()] == [
        "shard-00000-of-00001.pt"
    ]


@pytest.mark.parametrize("has_rates", [True, False])
@pytest.mark.parametrize("where", ["left", "checkpoint"])
def test_the_learning_rates_of_then_come_back(context: Context, where: str, *, has_rates: bool) -> None:
    before = shard_of(version=7)
    before.set_learning_rates([0.025])
    after = shard_of()
    if where == "left":
        path = shard_checkpoint.save_shard(before, context)
    else:
        folder = tm.stage_checkpoint(7)
        is_written = threading.Event()
        saver = ShardWriter(before, is_written.set)
        header = {"op": "save", "step": 7, "version": None, "directory": str(folder.parent)}
        saver.ask(WorkerRequest(cast("WorkerSession", None), header, []), 0.0)
        saver.proceed()
        assert is_written.wait(WITHIN_S)
        path = folder / "shard-00000-of-00001.pt"
    if not has_rates:  # as an earlier version wrote it
        retained = torch.load(path, weights_only=True)
        del retained["rates"]
        shard_checkpoint.save_file(retained, path)

    if where == "left":
        assert shard_checkpoint.restore_saved_shard(after, context, mode="async", start=None)
    else:
        shard_checkpoint.restore_shard(after, path.parent)

    assert after.learning_rates == ([0.025] if has_rates else [0.1])
    gradients = [torch.ones_like(block) for block in after.values]
    after.apply(gradients, {})
    assert value_of(after) == pytest.approx(-after.learning_rates[0])


@pytest.mark.parametrize("left_at", [9, 10, 11])
def test_only_what_is_newer_than_the_checkpoint_is_taken_up(context: Context, left_at: int) -> None:
    path = checkpoint(10, value=1.0)
    shard_checkpoint.save_shard(shard_of(version=left_at, value=2.0), context)
    shard = shard_of()
    shard_checkpoint.restore_shard(shard, path)

    assert shard_checkpoint.restore_saved_shard(shard, context, mode="async", start=path) is (left_at > 10)
    assert value_of(shard) == (2.0 if left_at > 10 else 1.0)


def test_a_chosen_older_checkpoint_is_used(context: Context) -> None:
    older = checkpoint(10, value=1.0)
    checkpoint(20, value=1.5)
    shard_checkpoint.save_shard(shard_of(version=30, value=2.0), context)

    assert not shard_checkpoint.restore_saved_shard(shard_of(), context, mode="async", start=older)


@pytest.mark.parametrize(
    ("mode", "versions", "attempts", "own_attempt", "is_taken"),
    [
        ("sync", (30, 30), (2, 2), 3, True),
        ("sync", (30, 31), (2, 2), 3, False),  # stopped between two updates
        ("async", (30, 31), (2, 2), 3, True),
        ("async", (30, None), (2, 2), 3, False),  # the other one was killed
        ("async", (30, 29), (2, 1), 3, False),  # the other one was killed, and stopped long ago
        ("async", (30, None), (2, 2), 2, True),  # the other one went on
        ("sync", (30, None), (2, 2), 2, True),
    ],
)
def test_all_take_up_what_they_left_or_none_does(
    context: Context,
    mode: str,
    versions: tuple[int, int | None],
    attempts: tuple[int, int],
    own_attempt: int,
    *,
    is_taken: bool,
) -> None:
    path = checkpoint(10, 10, value=1.0)
    for ps, version in enumerate(versions):
        if version is not None:
            shard_checkpoint.save_shard(
                shard_of(ps, 2, version=version, value=2.0), replace(context, attempt=attempts[ps])
            )
    shard = shard_of(0, 2)
    shard_checkpoint.restore_shard(shard, path)

    assert (
        shard_checkpoint.restore_saved_shard(shard, replace(context, attempt=own_attempt), mode=mode, start=path)
        is is_taken
    )
    assert shard.version == (30 if is_taken else 10)


def test_what_another_model_left_and_what_is_damaged_is_passed_over(
    context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shard_checkpoint.save_shard(shard_of(version=5), context)
    wide = torch.nn.Linear(8, 60)
    other = Shard(layout_of(wide, sgd(wide)), sgd(wide), 0, 1)

    assert not shard_checkpoint.restore_saved_shard(other, context, mode="async", start=None)
    path.write_bytes(path.read_bytes()[:100])
    assert not shard_checkpoint.restore_saved_shard(shard_of(), context, mode="async", start=None)
    assert "cannot be read as a shard" in capsys.readouterr().out


def test_a_full_volume_leaves_what_was_there(
    context: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shard_checkpoint.save_shard(shard_of(version=5, value=5.0), context)

    monkeypatch.setattr(os, "write", full_disk)
    roles._save_for_successor(shard_of(version=6), context)
    monkeypatch.undo()

    assert "ps 0 cannot keep its shard (No space left on device)" in capsys.readouterr().out
    shard = shard_of()
    assert shard_checkpoint.restore_saved_shard(shard, context, mode="async", start=None)
    assert (shard.version, value_of(shard)) == (5, 5.0)
    assert len(list((context.checkpoint_dir / shard_checkpoint.STOPPED_FOLDER).iterdir())) == 1


def test_a_checkpoint_that_makes_room_while_it_is_read_is_replaced_by_the_newer_one(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = checkpoint(10, value=1.0), checkpoint(20, value=2.0)
    monkeypatch.setenv("TRAINMASTER_RESUME_FROM", str(older))
    restore = roles.restore_shard

    def late(shard: Shard, path: Path) -> None:
        if path == older:
            for file in older.iterdir():
                file.unlink()
            older.rmdir()
        restore(shard, path)

    monkeypatch.setattr(roles, "restore_shard", late)
    shard = shard_of()

    assert roles._restore(shard, context, Options())
    assert (shard.version, value_of(shard)) == (20, 2.0)
    assert newer.exists()


def test_a_stopped_ps_goes_on_where_it_was_and_leaves_nothing_when_the_training_is_done(
    gang: Callable[..., Gang],
) -> None:
    job = gang(1)
    job.until(lambda: job.updates() >= 3, "updates")

    assert job.send("ps-0", signal.SIGTERM) == 0
    left = re.search(r"ps 0 left its shard of update (\d+) in", job.log("ps-0"))
    assert left, job.log("ps-0")
    job.start("ps-0")
    job.until(lambda: job.updates() >= int(left[1]) + 2, "updates after it")
    assert f"going on from where this ps was stopped: {left[1]} updates are done." in job.log("ps-0")
    job.end_training()
    assert job.ended("worker-0") == 0
    assert job.send("ps-0", signal.SIGTERM) == 0

    assert not (job.folder / "checkpoints" / shard_checkpoint.STOPPED_FOLDER).exists()
    assert "Traceback" not in job.log("ps-0") + job.log("worker-0")
