"""The restore drill: a platform in use is backed up while it runs and restored elsewhere, between both databases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, select, text

from core import secrets
from core.db.bootstrap import prepare_home
from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import (
    Archive,
    Attempt,
    Base,
    Event,
    Job,
    MetricSegment,
    Model,
    ModelVersion,
    Secret,
    Volume,
)
from core.domain.metrics import Points
from core.settings import Settings
from core.tokens import platform_key
from executors.fake import FakeEngine, Script
from migrations.backup.backup_file import BackupReader, BackupRefused
from migrations.backup.make_backup import make_backup
from migrations.backup.restore_backup import restore_backup
from tests.databases import POSTGRES
from tests.integration.control.conftest import Plane

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
PASSPHRASE = "correct horse"
HEXES = "ab" * 32


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def target(request, tmp_path):
    """The settings of an empty installation."""
    home = tmp_path / "new"
    home.mkdir()
    if request.param == "sqlite":
        yield Settings(home=home, secret_key="", database_url="")
        return
    if not POSTGRES:
        pytest.skip("needs TRAINMASTER_TEST_DATABASE_URL")
    server, name = make_url(POSTGRES).set(drivername="postgresql+psycopg"), f"trainmaster_restored_{os.getpid()}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"drop database if exists {name} with (force)"))
        connection.execute(text(f"create database {name}"))
    url = server.set(database=name).render_as_string(hide_password=False)
    yield Settings(home=home, secret_key="", database_url=url)
    with admin.connect() as connection:
        connection.execute(text(f"drop database if exists {name} with (force)"))
    admin.dispose()


@pytest.fixture
def source(settings, sessions):
    """A platform in use: a running job, an archive, a model version, a secret, metrics and an output."""
    output = settings.home / "output"
    output.mkdir()
    plane = Plane(sessions, output)
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit("digits")
    plane.settle()
    now = plane.engine.now
    version = ".models/default/version-1"
    for path in (f"{version}/model.safetensors", "default/digits/checkpoints/step-1/a.pt"):
        (output / path).parent.mkdir(parents=True)
        (output / path).write_bytes(path.encode() * 100)
    (output / "default/digits/latest").symlink_to("checkpoints/step-1")
    archive = settings.archive_dir / HEXES[:2] / f"{HEXES}.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"\x1f\x8b packed")
    with unit_of_work(sessions) as session:
        sealed = secrets.seal(platform_key(settings), "project-1", "TOKEN", "opened")
        model = Model(id="model-1", project_id="project-1", user_id="user-1", name="m", created_at=now, updated_at=now)
        session.add_all([Secret(project_id="project-1", name="TOKEN", ciphertext=sealed, updated_at=now), model])
        session.flush()
        session.add_all([
            Archive(digest=f"sha256:{HEXES}", size_bytes=9, received_bytes=9, is_complete=True, user_id="user-1",
                    created_at=now, used_at=now),
            ModelVersion(id="version-1", model_id="model-1", project_id="project-1", user_id="user-1", number=1,
                         state="ready", source={"kind": "output"}, volume="output", path=version, job_id=job,
                         created_at=now, updated_at=now),
        ])  # fmt: skip
        points = {"loss": Points([0, 1], [1_000, 2_000], [float("inf"), 0.5])}
        add_metrics(session, StreamKey(job, 1, "worker", 0), points, [], now=now)
    return plane


def rows_of(url: str) -> dict[str, list[str]]:
    engine = make_engine(url)
    with engine.connect() as connection:
        found = {
            table.name: sorted(
                json.dumps(list(row), default=repr, sort_keys=True) for row in connection.execute(select(table))
            )
            for table in Base.metadata.sorted_tables
        }
    engine.dispose()
    return found


def back_up(settings, tmp_path: Path, now, **options) -> Path:
    file = tmp_path / "a.tmbackup"
    make_backup(settings, file, PASSPHRASE, now, **{"with_outputs": False, **options})
    return file


def demand_next_attempt(plane: Plane, first: Attempt) -> None:
    """The attempt of the backup ends, and only then the next one begins, uncounted."""
    plane.start()
    for _ in range(30):
        plane.advance(4)
        assert len(plane.engine.attempts()) <= 1
    old, new = plane.all(Attempt)
    assert (old.id, old.state, new.state) == (first.id, "ended", "running")
    assert "restored from its backup" in old.end["sentence"]
    assert list(plane.engine.attempts()) == [new.id]
    assert plane.one(Job).restart_count == 0


def test_all_that_was_there_is_there_again_and_works(source, settings, target, tmp_path):
    file = back_up(settings, tmp_path, source.engine.now, with_outputs=True)
    before = rows_of(settings.resolved_database_url)
    summary = restore_backup(target, file, PASSPHRASE, source.engine.now + timedelta(hours=1))
    after = rows_of(target.resolved_database_url)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"attempts", "events", "leases", "secrets", "volumes"}
    assert (summary.fenced, summary.files) == (1, 4)
    output = target.home / "output"
    assert (output / "default/digits/latest/a.pt").read_bytes().startswith(b"default/digits")
    assert (output / ".models/default/version-1/model.safetensors").is_file()
    assert (target.archive_dir / HEXES[:2] / f"{HEXES}.tar.gz").read_bytes() == b"\x1f\x8b packed"
    engine = make_engine(target.resolved_database_url)
    sessions = make_sessions(engine)
    with unit_of_work(sessions) as session:
        assert session.scalars(select(Volume.root)).one() == str(output)
        key = platform_key(target)
        assert secrets.open_secrets(session, key, "project-1", ["TOKEN"]) == {"TOKEN": "opened"}
        last = session.scalars(select(MetricSegment.id)).all()[-1]
        # Numbers go on behind the restored rows.
        session.add(MetricSegment(stream_id=session.scalars(select(MetricSegment.stream_id)).first(), data=b""))
        session.flush()
        assert session.scalars(select(MetricSegment.id)).all()[-1] > last
        assert session.scalars(select(Event.reason).order_by(Event.id.desc())).first().startswith("The platform was")
    first, now = source.one(Attempt), source.engine.now
    source.engine = FakeEngine(source.engine.nodes())
    source.engine.advance(now - source.engine.now)
    source.engine.script("worker", Script(run_for=None))
    source.sessions = sessions
    demand_next_attempt(source, first)
    engine.dispose()


def test_a_platform_is_replaced_on_its_machine_by_force_alone_and_its_job_never_runs_twice(source, settings, tmp_path):
    file = back_up(settings, tmp_path, source.engine.now)
    first = source.one(Attempt)
    with pytest.raises(BackupRefused, match="A scheduler uses this database"):
        restore_backup(settings, file, PASSPHRASE, source.engine.now, replaces=True)
    later = source.engine.now + timedelta(hours=1)
    with pytest.raises(BackupRefused, match=r"not empty.*--force"):
        restore_backup(settings, file, PASSPHRASE, later)
    source.submit("after-the-backup")
    source.sessions.kw["bind"].dispose()
    restore_backup(settings, file, PASSPHRASE, later, replaces=True)
    assert [job.name for job in source.all(Job)] == ["digits"]
    demand_next_attempt(source, first)


@pytest.fixture
def small(sqlite_template, tmp_path):
    """A new platform."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(sqlite_template, home / "trainmaster.sqlite3")
    settings = Settings(home=home, secret_key="y" * 40, database_url="")
    engine = make_engine(settings.resolved_database_url)
    prepare_home(make_sessions(engine), settings, NOW)
    engine.dispose()
    return settings


def test_a_target_without_a_key_gets_that_of_the_backup(small, tmp_path):
    target = Settings(home=tmp_path / "new", secret_key="", database_url="")
    restore_backup(target, back_up(small, tmp_path, NOW), PASSPHRASE, NOW)
    assert platform_key(target) == b"y" * 40


def test_a_failed_restore_leaves_the_target_as_it_was(small, tmp_path):
    (small.home / "output" / "a").write_text("an output")
    file = back_up(small, tmp_path, NOW, with_outputs=True)
    before = rows_of(small.resolved_database_url)
    # A folder in the way of a file, as a stand-in for a disk that is full.
    (small.home / "output" / "a").unlink()
    (small.home / "output" / "a" / "in the way").mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match="directory"):
        restore_backup(small, file, PASSPHRASE, NOW, replaces=True)
    assert rows_of(small.resolved_database_url) == before


def test_a_wrong_passphrase_and_a_short_one_are_refused(small, tmp_path):
    file = back_up(small, tmp_path, NOW)
    target = Settings(home=tmp_path / "new", database_url="")
    with pytest.raises(BackupRefused, match="The passphrase does not open"):
        restore_backup(target, file, "wrong horse", NOW)
    with pytest.raises(BackupRefused, match="8 or more characters"):
        make_backup(small, tmp_path / "b", "short", NOW, with_outputs=False)
    with pytest.raises(BackupRefused, match="exists"):
        make_backup(small, file, PASSPHRASE, NOW, with_outputs=False)
    with pytest.raises(BackupRefused, match="no platform to back up"):
        make_backup(target, tmp_path / "b", PASSPHRASE, NOW, with_outputs=False)
    assert not (target.home / "trainmaster.sqlite3").exists()


def test_a_damaged_file_is_refused_with_the_name_of_the_member(small, tmp_path):
    file = back_up(small, tmp_path, NOW)
    target = Settings(home=tmp_path / "new", database_url="")
    whole = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        at = archive.getinfo("database/users.jsonl").header_offset + 80
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    with pytest.raises(BackupRefused, match=r"its member database/users.jsonl is not what was written"):
        restore_backup(target, file, PASSPHRASE, NOW)
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BackupRefused, match="damaged or no backup"):
        restore_backup(target, file, PASSPHRASE, NOW)
    assert not (target.home / "trainmaster.sqlite3").exists()


def test_a_backup_of_a_newer_version_is_refused(small, tmp_path):
    reader = BackupReader(back_up(small, tmp_path, NOW))
    manifest = {**reader.manifest, "migration": "9999", "version": "7.0"}
    reader.close()
    with zipfile.ZipFile(tmp_path / "newer", "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
    with pytest.raises(BackupRefused, match=r"newer version of Trainmaster \(7.0, migration 9999\)"):
        restore_backup(Settings(home=tmp_path / "new", database_url=""), tmp_path / "newer", PASSPHRASE, NOW)


def test_the_commands_back_up_and_restore(small, tmp_path):
    file, phrase = tmp_path / "a.tmbackup", tmp_path / "phrase"
    phrase.write_text(f"{PASSPHRASE}\n")
    command = [sys.executable, "-m", "trainmaster.cli.main"]
    given = ["--passphrase-file", str(phrase), "--json"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "TRAINMASTER_HOME": str(small.home)}
    env.pop("TRAINMASTER_DATABASE_URL", None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *arguments, *given], env=env, capture_output=True, text=True, check=False)

    made = run("backup", str(file))
    assert (made.returncode, json.loads(made.stdout)["rows"] > 5, file.stat().st_mode & 0o777) == (0, True, 0o600)
    refused = run("restore", str(file), "--home", str(tmp_path / "b"))
    assert refused.returncode == 0, refused.stderr
    file.write_text("no backup")
    refused = run("restore", str(file), "--home", str(tmp_path / "c"))
    assert (refused.returncode, "damaged or no backup" in refused.stderr + refused.stdout) == (1, True)
    assert "Traceback" not in refused.stderr
