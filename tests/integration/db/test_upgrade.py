"""Upgrades: what they would do is told before, and an older database is brought up to date and used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, text, update

from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.tables import Attempt, Event, Token
from core.settings import Settings
from executors.fake import Script
from migrations import head_revision, upgrade
from migrations.backup.make_backup import make_backup
from migrations.backup.table_rows import reflect
from migrations.upgrade_check import check_upgrade, is_supported
from tests.integration.control.conftest import Plane

ROOT = Path(__file__).parents[3]
OLD = "0039"


@pytest.fixture
def new(sqlite_template, tmp_path):
    """A platform in which a job runs."""
    home = tmp_path / "new"
    home.mkdir()
    shutil.copy(sqlite_template, home / "trainmaster.sqlite3")
    settings = Settings(home=home, database_url="", secret_key="y" * 40)
    engine = make_engine(settings.resolved_database_url)
    plane = Plane(make_sessions(engine), tmp_path)
    plane.engine.script("worker", Script(run_for=timedelta(hours=1)))
    plane.submit("digits")
    plane.settle()
    yield plane, settings
    engine.dispose()


@pytest.fixture
def old(new, tmp_path):
    """The same of migration 0039: in the columns that there were."""
    plane, settings = new
    home = tmp_path / "old"
    url = f"sqlite:///{home / 'trainmaster.sqlite3'}"
    upgrade(url, OLD)
    now_engine, old_engine = make_engine(settings.resolved_database_url), make_engine(url)
    with now_engine.connect() as source, old_engine.begin() as target:
        tables = reflect(source).tables
        for table in reflect(target).sorted_tables:
            if table.name not in tables or table.name == "alembic_version":
                continue
            columns = [column for column in tables[table.name].columns if column.name in table.columns]
            rows = [dict(row) for row in source.execute(select(*columns)).mappings()]
            if rows:
                target.execute(table.delete())
                target.execute(table.insert(), rows)
    now_engine.dispose()
    old_engine.dispose()
    return plane, Settings(home=home, database_url="", secret_key="y" * 40)


def test_an_older_database_is_brought_up_to_date_and_its_jobs_go_on(old):
    plane, settings = old
    check = check_upgrade(settings, plane.engine.now)
    assert (check.migration, check.newest, check.live_jobs, check.problems) == (OLD, head_revision(), 1, [])
    steps = [step["migration"] for step in check.pending]
    assert (steps[0], steps[-1]) == ("0040", head_revision())
    assert "No backup is known" in check.warnings[0]
    make_backup(settings, settings.home / "b", "correct horse", plane.engine.now, with_outputs=False)
    assert check_upgrade(settings, plane.engine.now).warnings == []

    upgrade(settings.resolved_database_url)
    engine = make_engine(settings.resolved_database_url)
    plane.sessions = make_sessions(engine)
    plane.start()
    plane.advance(4000)
    assert plane.state("job-digits") == "succeeded"
    again = plane.submit("again")
    plane.settle()
    assert plane.state(again) == "running"
    assert "platform.backed_up" in {event.kind for event in plane.all(Event)}
    after = check_upgrade(settings, plane.engine.now)
    assert (after.pending, after.warnings, after.live_jobs) == ([], [], 1)
    engine.dispose()


@pytest.mark.parametrize(
    ("other", "is_known"), [("0.2.3", True), ("0.4.0", True), ("0.5.0", False), ("1.3.0", False), ("?", False)]
)
def test_versions_one_minor_apart_work_together(other, is_known):
    assert is_supported("0.3.1", other) is is_known


def test_runtimes_and_clients_that_are_too_old_are_named(new):
    plane, settings = new
    with unit_of_work(plane.sessions) as session:
        now = plane.engine.now
        session.add(Token(id="t", user_id="user-1", name="t", digest="d", scopes=[], created_at=now,
                          last_used_at=now, client_version="0.2.0"))  # fmt: skip
        session.execute(update(Attempt).values(platform_version="0.3.0"))
    check = check_upgrade(settings, plane.engine.now, version="0.4.0")
    assert [warning.partition(";")[0] for warning in check.warnings] == [
        "Users with a client that is too old or too new: ann (0.2.0)"
    ]
    later = check_upgrade(settings, plane.engine.now, version="0.9.0")
    assert later.warnings[0].startswith("Running attempts with the runtime of version 0.3.0: 1; supported are")


def test_a_newer_database_and_an_unknown_migration_are_refused_with_a_sentence(tmp_path):
    url = f"sqlite:///{tmp_path / 'trainmaster.sqlite3'}"
    upgrade(url, "0001")
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(text("update alembic_version set version_num = '9999'"))
    engine.dispose()
    env = {"TRAINMASTER_HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", *command], env=env, cwd=ROOT, capture_output=True, text=True,
                              check=False)  # fmt: skip

    for command in (("migrations", "downgrade", "0001"), ("trainmaster.cli.main", "upgrade", "--check")):
        refused = run(*command)
        assert refused.returncode == 1
        assert "The database belongs to a newer version" in " ".join(refused.stderr.split())
    unknown = run("migrations", "upgrade", "7777")
    shown = refused.stdout + refused.stderr + unknown.stderr
    assert "Traceback" not in shown
    assert json.loads(run("migrations", "check").stdout)["problems"]
