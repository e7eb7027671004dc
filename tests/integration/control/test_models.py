"""Registering models with kills: whatever is done when the control plane dies, a version is ready whole or not at
all.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from trainmaster.studies import parse_study

from core.db.engine import unit_of_work
from core.db.repositories.models import move_version
from core.db.tables import Event, Job, ModelAlias, ModelChange, ModelFile, ModelVersion, Project, Study, Trial, Volume
from core.domain.model_versions import VersionEvent, VersionState
from core.registry.sources import SourceRequest
from core.registry.versions import Author, VersionMetadata, ready, register_from_job
from core.storage import registry
from executors.fake import ProcessKilled
from scheduler.control import registrar
from scheduler.control.context import ControlContext
from scheduler.control.registrar import Registrar

FILES = {"a.txt": b"a", "sub/b.bin": b"b" * 5000, "sub/deep/c.bin": b"c" * 70}
BY = Author("user-1", "ann", "user:ann")


class Lab:
    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self.folder: Path = plane.folder
        self.lives = 0
        plane.submit("a")
        self.write(FILES)
        with unit_of_work(plane.sessions) as session:
            session.get_one(Job, "job-a").state = "succeeded"

    def write(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            path = self.folder / "default/a/model" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def mount(self, root: Path) -> None:
        with unit_of_work(self.plane.sessions) as session:
            session.get_one(Volume, "volume-1").root = str(root)

    def registrar(self, step: Callable[[str], None] = lambda _name: None) -> Registrar:
        """Of a new process, in which nothing is remembered."""
        self.lives += 1
        control: ControlContext = self.plane.control
        fresh = ControlContext(
            control.sessions, control.executor, self.plane, control.clock, f"life-{self.lives}", control.secret_key
        )
        return Registrar(fresh, limit_bytes=2**30, step=step)

    def register(self, *, when_done: bool = False) -> None:
        with unit_of_work(self.plane.sessions) as session:
            register_from_job(
                session,
                self.plane.engine.now,
                session.get_one(Job, "job-a"),
                "digits",
                BY,
                SourceRequest(),
                volume="output",
                metadata=VersionMetadata(aliases=("prod",)),
                when_done=when_done,
            )

    @property
    def version(self) -> ModelVersion:
        found: ModelVersion = self.plane.one(ModelVersion)
        return found

    def place(self) -> Path:
        return self.folder / self.version.path

    def demand_whole_or_nothing(self) -> None:
        """What a reader is given is whole, at any moment."""
        if self.version.state == "ready":
            there = {
                str(path.relative_to(self.place())): path.read_bytes()
                for path in self.place().rglob("*")
                if path.is_file()
            }
            assert there == FILES
            assert len(self.plane.all(ModelAlias)) == 1
        else:
            assert self.plane.all(ModelAlias) == []


@pytest.fixture
def lab(plane: Any) -> Lab:
    return Lab(plane)


class Killer:
    """Dies before the step of this number."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.seen: list[str] = []

    def __call__(self, name: str) -> None:
        self.seen.append(name)
        if self.left == 0:
            raise ProcessKilled(name)
        self.left -= 1


def test_killed_before_any_step_it_is_ready_whole_once(lab: Lab) -> None:
    # One registration, killed before its first step, then before its second, … until it is done in spite of all.
    lab.register()
    kills = 0
    for at in (0, 1, 2, 3, 1, 4, 5, 2, 6, 7, 8, 9, 10, 3, 11, 12, 13, 14, 15):
        killer = Killer(at)
        try:
            lab.registrar(killer).work()
        except ProcessKilled:
            kills += 1
        lab.demand_whole_or_nothing()
        lab.plane.engine.advance(timedelta(seconds=20))  # the lease of the dead one expires
    assert kills >= 8
    assert lab.version.state == "ready"
    rows = lab.plane.all(ModelFile)
    assert {row.path: row.sha256 for row in rows} == {
        path: hashlib.sha256(data).hexdigest() for path, data in FILES.items()
    }
    assert [row.kind for row in lab.plane.all(ModelChange)] == [
        "model.created",
        "version.registered",
        "version.ready",
        "alias.moved",
    ]


@pytest.mark.parametrize("at", range(14))
def test_killed_once_at_each_step_the_next_process_goes_on(lab: Lab, at: int) -> None:
    lab.register()
    killer = Killer(at)
    try:
        lab.registrar(killer).work()
    except ProcessKilled:
        lab.demand_whole_or_nothing()
    lab.plane.engine.advance(timedelta(seconds=20))
    lab.registrar().work()
    assert lab.version.state == "ready"
    lab.demand_whole_or_nothing()
    assert list((lab.folder / ".models/default/.drafts").iterdir()) == []


def test_half_a_file_of_a_killed_copy_is_cleared_away(lab: Lab) -> None:
    lab.register()
    killer = Killer(3)
    with pytest.raises(ProcessKilled):
        lab.registrar(killer).work()
    (draft,) = (lab.folder / ".models/default/.drafts").iterdir()
    (draft / ".0123.part").write_bytes(b"half")
    lab.plane.engine.advance(timedelta(seconds=20))
    lab.registrar().work()
    assert lab.version.state == "ready"
    lab.demand_whole_or_nothing()


def test_what_is_copied_is_not_copied_again(lab: Lab) -> None:
    lab.register()
    with pytest.raises(ProcessKilled):
        lab.registrar(Killer(7)).work()
    with unit_of_work(lab.plane.sessions) as session:
        row = session.scalars(select(ModelFile).order_by(ModelFile.path)).first()
        assert row is not None
        (draft,) = (lab.folder / ".models/default/.drafts").iterdir()
        row.sha256 = hashlib.sha256((draft / row.path).read_bytes()).hexdigest()
    (lab.folder / "default/a/model/a.txt").unlink()  # its source is not needed any more
    lab.plane.engine.advance(timedelta(seconds=20))
    lab.registrar().work()
    assert lab.version.state == "ready"


def test_two_processes_do_not_disturb_each_other(lab: Lab) -> None:
    lab.register()
    seen: list[str] = []

    def other(name: str) -> None:
        if name == "copy" and not seen:
            seen.append(name)
            lab.registrar().work()  # does nothing: the first one holds the lease

    lab.registrar(other).work()
    assert (seen, lab.version.state) == (["copy"], "ready")


def test_without_the_lease_nothing_is_written(lab: Lab) -> None:
    lab.register()
    done: list[str] = []

    def late(name: str) -> None:
        if name == "publish" and not done:
            done.append(name)
            lab.plane.engine.advance(timedelta(seconds=20))  # as if it had been paused for so long
            lab.registrar().work()

    lab.registrar(late).work()
    assert lab.version.state == "ready"
    lab.demand_whole_or_nothing()
    whats = [row.kind for row in lab.plane.all(ModelChange)]
    assert whats.count("version.ready") == 1


def test_deleted_while_it_is_copied_nothing_is_left(lab: Lab) -> None:
    lab.register()
    version_id, now = lab.version.id, lab.plane.engine.now

    def meanwhile(name: str) -> None:
        if name == "publish":
            with unit_of_work(lab.plane.sessions) as session:
                move_version(session, version_id, VersionState.REGISTERING, VersionEvent.DELETE, now)

    lab.registrar(meanwhile).work()
    assert lab.version.state == "deleting"
    lab.plane.engine.advance(timedelta(seconds=20))
    for at in (0, 1):
        with pytest.raises(ProcessKilled):
            lab.registrar(Killer(at)).work()
        lab.plane.engine.advance(timedelta(seconds=20))
    lab.registrar().work()
    assert lab.version.deleted_at is not None
    assert [path for path in (lab.folder / ".models/default").rglob("*") if path.is_file()] == []
    assert lab.plane.all(ModelFile) == []


def test_a_volume_that_is_away_is_waited_for(lab: Lab) -> None:
    lab.register()
    lab.mount(lab.folder / "away")
    lab.registrar().work()
    assert (lab.version.state, "is not there now" in lab.version.reason) == ("registering", True)
    lab.mount(lab.folder)
    lab.plane.engine.advance(timedelta(seconds=20))
    lab.registrar().work()
    assert (lab.version.state, lab.version.reason) == ("ready", "")


class BadBlock:
    """Reading from byte 3,000 of a file on raises ``error``, until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.reads = 0
        self.error: Exception | None = error
        self._pread = os.pread
        monkeypatch.setattr(os, "pread", self)
        monkeypatch.setattr(registry, "CHUNK_BYTES", 1000)
        monkeypatch.setattr(registrar, "NOTE_EVERY_S", -1.0)  # each piece is written down

    def __call__(self, fd: int, size: int, at: int) -> bytes:
        if at >= 3000 and self.error is not None:
            self.reads += 1
            raise self.error
        return self._pread(fd, size, at)


def test_a_file_that_fails_late_is_not_copied_for_ever(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.register()
    bad = BadBlock(monkeypatch, RuntimeError("nobody foresaw it"))
    process = lab.registrar()
    for _ in range(9):
        process.work()
        lab.plane.engine.advance(timedelta(minutes=5))
    # The first time another file got whole before it.
    assert (lab.version.state, bad.reads) == ("failed", 6)
    assert "which is a bug" in lab.version.reason


def test_a_disk_that_fails_is_read_less_and_less_often(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.register()
    bad = BadBlock(monkeypatch, OSError(errno.EIO, "bad block"))
    process = lab.registrar()
    for _ in range(50):
        process.work()
        lab.plane.engine.advance(timedelta(seconds=2))
    assert (lab.version.state, bad.reads) == ("registering", 6)  # after 0, 2, 6, 14, 30 and 62 s
    assert lab.version.reason.endswith("It was tried 6 times and is tried again in 64 s.")
    bad.error = None
    lab.plane.engine.advance(timedelta(seconds=64))
    process.work()
    assert (lab.version.state, lab.version.reason) == ("ready", "")
    lab.demand_whole_or_nothing()


def test_what_is_deleted_meanwhile_does_not_wait(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.register()
    BadBlock(monkeypatch, OSError(errno.EIO, "bad block"))
    process = lab.registrar()
    process.work()
    version_id, now = lab.version.id, lab.plane.engine.now
    with unit_of_work(lab.plane.sessions) as session:
        move_version(session, version_id, VersionState.REGISTERING, VersionEvent.DELETE, now)
    process.work()
    assert lab.version.deleted_at is not None


def test_it_lies_where_its_row_says_whatever_the_project_is_called_now(lab: Lab) -> None:
    lab.register()
    with unit_of_work(lab.plane.sessions) as session:
        session.get_one(Project, "project-1").name = "renamed"
    lab.registrar().work()
    assert lab.version.state == "ready"
    lab.demand_whole_or_nothing()
    version_id, place, now = lab.version.id, lab.place(), lab.plane.engine.now
    with unit_of_work(lab.plane.sessions) as session:
        move_version(session, version_id, VersionState.READY, VersionEvent.DELETE, now)
    lab.registrar().work()
    assert (lab.version.deleted_at is not None, place.exists()) == (True, False)


def test_a_file_written_to_meanwhile_fails_it(lab: Lab) -> None:
    lab.register()

    def writes(name: str) -> None:
        if name == "take over":
            lab.write({"sub/b.bin": b"other"})

    lab.registrar(writes).work()
    assert lab.version.state == "failed"
    assert "sub/b.bin was written to while it was registered" in lab.version.reason
    assert list((lab.folder / ".models/default/.drafts").iterdir()) == []


def test_it_waits_for_its_job_without_a_wakeup(lab: Lab) -> None:
    with unit_of_work(lab.plane.sessions) as session:
        session.get_one(Job, "job-a").state = "running"
    lab.register(when_done=True)
    lab.registrar().work()
    assert lab.version.state == "waiting"
    with unit_of_work(lab.plane.sessions) as session:
        session.get_one(Job, "job-a").state = "succeeded"
    with pytest.raises(ProcessKilled):
        lab.registrar(Killer(0)).work()
    lab.plane.engine.advance(timedelta(seconds=20))
    for _ in range(2):
        lab.registrar().work()
        lab.plane.engine.advance(timedelta(seconds=20))
    assert lab.version.state == "ready"
    with unit_of_work(lab.plane.sessions) as session:
        found = ready(session, "project-1", "digits", "prod")
        assert [file.path for file in found.manifest] == sorted(FILES)
        kinds = set(session.scalars(select(Event.kind)))
    assert {"model.created", "model.version_registered", "model.version_ready", "model.alias_moved"} <= kinds


@pytest.mark.parametrize(
    ("changes", "by_hand", "points_to"),
    [
        ({}, False, 1),  # 0.9 is there, and 0.5 comes
        ({"goal": "minimize"}, False, 2),
        ({"metric": "recall"}, False, 2),  # nothing to compare
        ({}, True, 2),  # a person has said so
    ],
)
def test_the_alias_of_a_winner_stays_at_a_better_one_of_an_earlier_study(
    lab: Lab, changes: dict[str, Any], by_hand: bool, points_to: int
) -> None:
    lab.plane.submit("b")
    now = lab.plane.engine.now
    before = changes if "goal" in changes else {}
    for letter, reported, value in (("a", before, 0.9), ("b", changes, 0.5)):
        spec = parse_study(
            {
                "name": f"study-{letter}",
                "template": {"command": "train"},
                "metric": "score",
                "goal": "maximize",
                "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
                "budget": {"trials": 1},
                **reported,
            }
        )
        with unit_of_work(lab.plane.sessions) as session:
            job = session.get_one(Job, f"job-{letter}")
            job.state, job.output_path = "succeeded", "default/a"
            job.trial = {"study_id": spec.name, "study": spec.name, "number": 1, "parameters": {}}
            session.add(
                Study(
                    id=spec.name,
                    project_id="project-1",
                    user_id="user-1",
                    name=spec.name,
                    seed=1,
                    state="succeeded",
                    spec=spec.model_dump(mode="json"),
                    created_at=now,
                    started_at=now,
                    updated_at=now,
                )
            )
            session.flush()
            session.add(
                Trial(
                    study_id=spec.name,
                    number=1,
                    job_id=job.id,
                    state="succeeded",
                    parameters={},
                    created_at=now,
                    result={spec.metrics[0].name: value},
                )
            )
            register_from_job(
                session,
                now,
                job,
                "digits",
                BY,
                SourceRequest(),
                volume="output",
                metadata=VersionMetadata(aliases=("best",), keeps_better=not by_hand),
            )
        lab.registrar().work()
    with unit_of_work(lab.plane.sessions) as session:
        found = {row.number: row for row in session.scalars(select(ModelVersion))}
        (alias,) = session.scalars(select(ModelAlias))
        assert {row.state for row in found.values()} == {"ready"}
        assert alias.version_id == found[points_to].id
        remaining = [row.reason for row in session.scalars(select(ModelChange).where(ModelChange.kind == "alias.kept"))]
        if points_to == 1:
            why = "its score of 0.9 (study study-a) is better than 0.5 of study study-b"
            assert (found[2].reason, remaining) == (f"Alias best stays at version 1: {why}.", [why])
        else:
            assert (found[2].reason, remaining) == ("", [])
