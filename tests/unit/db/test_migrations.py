from __future__ import annotations

import ast
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, make_url, select, text

from core.db.engine import make_engine
from core.db.tables import Base, Event
from migrations import NewerDatabase, current_revision, downgrade, head_revision, upgrade

ROOT = Path(__file__).parents[3]
AT: Final = "2026-01-01 00:00:00"


def test_the_migrations_make_exactly_the_tables_that_the_code_wants(database_url: str) -> None:
    engine = make_engine(database_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, Base.metadata)
    engine.dispose()
    assert differences == []


@pytest.mark.parametrize("path", sorted((ROOT / "migrations/versions").glob("*.py")), ids=lambda path: path.stem)
def test_history_is_frozen_and_imports_nothing_that_changes(path: Path) -> None:
    # A migration that imports today's tables or enums does something else tomorrow.
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [node.module or ""]
        for name in names:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names | {"sqlalchemy", "alembic"}, f"{path.name} imports {name}"


def test_going_down_leaves_nothing_and_up_again_works(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.sqlite3'}"
    upgrade(url)
    downgrade(url, "base")
    engine = make_engine(url)
    assert set(inspect(engine).get_table_names()) <= {"alembic_version"}
    engine.dispose()
    upgrade(url)


def test_nodes_of_the_first_form_keep_all_and_have_no_labels_of_admins(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.sqlite3'}"
    upgrade(url, "0001")
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "insert into nodes (name, executor, labels, allocatable, gpus, is_ready, condition, is_cordoned, "
                "cordon_reason, seen_at) "
                """values ('n', 'e', '{"a": "b"}', '{}', '[]', 1, '', 1, 'dust', '2026-11-21 07:00:00')"""
            )
        )
    upgrade(url)
    with engine.connect() as connection:
        row = connection.execute(text("select labels, admin_labels, cordon_reason from nodes")).one()
    assert tuple(row) == ('{"a": "b"}', "{}", "dust")
    engine.dispose()
    downgrade(url, "0001")
    engine = make_engine(url)
    assert "admin_labels" not in {column["name"] for column in inspect(engine).get_columns("nodes")}
    engine.dispose()


def test_endpoints_of_one_name_are_distinguished_by_their_ids(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.sqlite3'}"
    upgrade(url, "0022")
    raw = sqlite3.connect(tmp_path / "a.sqlite3")  # without the keys of projects and users
    at = "2026-11-22 07:00:00"
    raw.executemany(
        "insert into endpoints (id, project_id, user_id, name, description, created_at, updated_at, deleted_at) "
        "values (?, ?, 'u', 'a', '', ?, ?, ?)",
        [("e1", "p", at, at, at), ("e2", "p", at, at, None), ("e3", "p", at, at, None), ("e4", "q", at, at, None)],
    )
    raw.commit()
    raw.close()
    upgrade(url)
    raw = sqlite3.connect(tmp_path / "a.sqlite3")
    names = raw.execute("select id, name from endpoints order by id").fetchall()
    raw.close()
    assert names == [("e1", "a"), ("e2", "a"), ("e3", "e3"), ("e4", "a")]


def test_two_starts_at_once_migrate_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.sqlite3'}"
    command = [sys.executable, "-m", "migrations", "upgrade"]
    env = {"TRAINMASTER_DATABASE_URL": url, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"}
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda _: subprocess.run(command, cwd=ROOT, env=env, check=False), range(2)))
    assert [run.returncode for run in runs] == [0, 0]
    engine = make_engine(url)
    assert current_revision(engine) == head_revision()
    engine.dispose()


def test_versions_do_not_import_the_moving_code() -> None:
    for version in (ROOT / "migrations" / "versions").glob("*.py"):
        assert "core" not in version.read_text().replace("sqlalchemy", "")


def test_a_model_keeps_its_versions_and_files_when_versions_may_be_of_no_job(tmp_path: Path) -> None:
    # SQLite writes the table anew, and what refers to its rows must still do so.
    url, at = f"sqlite:///{tmp_path / 'a.sqlite3'}", "2026-01-01 00:00:00"
    upgrade(url, "0024")
    rows = {
        "users": {"id": "u", "name": "ann", "is_admin": 0, "created_at": at},
        "projects": {"id": "p", "name": "vision", "description": "", "weight": 1, "quota": "{}", "created_at": at},
        "jobs": {
            "id": "j",
            "project_id": "p",
            "user_id": "u",
            "name": "train",
            "spec": "{}",
            "gang": "{}",
            "shape": "",
            "state": "succeeded",
            "wanted": "run",
            "generation": 1,
            "priority": 50,
            "attempt_count": 1,
            "restart_count": 0,
            "output_volume": "output",
            "output_path": "a",
            "created_at": at,
            "queued_at": at,
            "updated_at": at,
        },
        "models": {
            "id": "m",
            "project_id": "p",
            "user_id": "u",
            "name": "digits",
            "description": "",
            "labels": "{}",
            "is_protected": 0,
            "version_count": 1,
            "created_at": at,
            "updated_at": at,
        },
        "model_versions": {
            "id": "v",
            "model_id": "m",
            "project_id": "p",
            "user_id": "u",
            "number": 1,
            "state": "ready",
            "reason": "",
            "stage": "none",
            "is_protected": 0,
            "description": "",
            "labels": "{}",
            "format": "",
            "job_id": "j",
            "source": "{}",
            "wanted": "{}",
            "volume": "output",
            "path": "a",
            "done_bytes": 0,
            "tries": 0,
            "created_at": at,
            "updated_at": at,
        },
        "model_files": {"version_id": "v", "path": "a.bin", "source": "a.bin", "size_bytes": 1, "mtime_ns": 1},
    }
    engine = make_engine(url)
    with engine.begin() as connection:
        for table, row in rows.items():
            names = ", ".join(row)
            values = ", ".join(f":{name}" for name in row)
            # Names of this test.
            connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)  # noqa: S608
    engine.dispose()
    upgrade(url)
    _demand_one_version_with_its_file(url, job="j")
    with sqlite3.connect(tmp_path / "a.sqlite3") as connection:
        connection.execute("UPDATE model_versions SET job_id = NULL")
    downgrade(url, "0024")  # which cannot hold it
    with sqlite3.connect(tmp_path / "a.sqlite3") as connection:
        assert connection.execute("SELECT count(*) FROM model_versions").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM models").fetchone() == (1,)


def _demand_one_version_with_its_file(url: str, *, job: str) -> None:
    engine = make_engine(url)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT job_id FROM model_versions")).all() == [(job,)]
        assert connection.execute(text("SELECT version_id FROM model_files")).all() == [("v",)]
        assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1  # of all but migrations
    engine.dispose()


# Of each table whose name or columns change in 0034, one row of the form before.
_ROWS_OF_0033: Final = {
    "strangers": {"attempt_id": "a", "database_id": "d", "is_foreign": 1, "since": AT},
    "kept_checkpoints": {"job_id": "j", "path": "step-1", "user": "ann", "created_at": AT},
    "outlooks": {
        "job_id": "j",
        "position": 1,
        "likely": AT,
        "at": AT,
        "code": "expected",
        "sentence": "",
        "nodes": "[]",
    },
    "mlflow_registered": {
        "project_id": "p",
        "name": "digits",
        "description": "",
        "tags": "{}",
        "created_at": AT,
        "updated_at": AT,
    },
    "mlflow_versions": {
        "project_id": "p",
        "name": "digits",
        "version": 1,
        "job_id": "j",
        "run_id": "r",
        "model_id": "m",
        "source": "s",
        "description": "",
        "tags": "{}",
        "created_at": AT,
        "updated_at": AT,
    },
    "vertex_links": {"above_id": "x", "below_id": "y", "kind": "child", "created_at": AT},
    "tokens": {
        "id": "t",
        "user_id": "u",
        "name": "n",
        "digest": "d",
        "scopes": "[]",
        "created_at": AT,
        "opened_by": "t0",
    },
    "questions": {
        "id": "q",
        "user_id": "u",
        "asked_at": AT,
        "kind": "forecast",
        "ask": "{}",
        "expires_at": AT,
    },
    "studies": {
        "id": "s",
        "project_id": "p",
        "user_id": "u",
        "name": "n",
        "spec": "{}",
        "seed": 1,
        "state": "running",
        "generation": 1,
        "reason": "",
        "note": "",
        "output_volume": "",
        "trial_count": 1,
        "proposed": 3,
        "prepared": '[{"memo": 1}]',
        "prepared_at": 2,
        "known": "[]",
        "winner": '{"trial": 1}',
        "created_at": AT,
        "started_at": AT,
        "updated_at": AT,
    },
}


def test_rows_keep_their_values_under_the_new_names_and_back(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path / 'a.sqlite3'}", tmp_path / "a.sqlite3"
    upgrade(url, "0033")
    raw = sqlite3.connect(file)  # without the keys of projects and users
    for table, row in _ROWS_OF_0033.items():
        names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" for _ in row)
        # Names of this test.
        raw.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))  # noqa: S608
    raw.commit()
    before = {table: _rows_of(raw, table) for table in _ROWS_OF_0033}
    raw.close()
    upgrade(url)
    raw = sqlite3.connect(file)
    assert raw.execute("SELECT attempt_id, found_at FROM orphans").fetchall() == [("a", AT)]
    assert raw.execute("SELECT path, user FROM pinned_checkpoints").fetchall() == [("step-1", "ann")]
    assert raw.execute("SELECT position, likely FROM start_forecasts").fetchall() == [(1, AT)]
    assert raw.execute("SELECT name FROM mlflow_registered_models").fetchall() == [("digits",)]
    assert raw.execute("SELECT parent_id, child_id FROM vertex_links").fetchall() == [("x", "y")]
    assert raw.execute("SELECT parent_token_id FROM tokens").fetchall() == [("t0",)]
    assert raw.execute("SELECT arguments, created_at FROM questions").fetchall() == [("{}", AT)]
    found = raw.execute(
        "SELECT proposed_count, prefetched_points, prefetched_after, best_trial FROM studies"
    ).fetchall()
    assert found == [(3, '[{"memo": 1}]', 2, '{"trial": 1}')]
    raw.close()
    downgrade(url, "0033")
    raw = sqlite3.connect(file)
    assert {table: _rows_of(raw, table) for table in _ROWS_OF_0033} == before
    raw.close()


def _rows_of(connection: sqlite3.Connection, table: str) -> list[dict[str, object]]:
    found = connection.execute(f"SELECT * FROM {table}")  # noqa: S608 (names of this test)
    return [dict(zip((column[0] for column in found.description), row, strict=True)) for row in found]


@pytest.fixture
def own_database(database_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a database that is at no revision yet."""
    if database_kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'a.sqlite3'}"
        return
    server = make_url(request.getfixturevalue("postgres_database"))
    name = f"{server.database}_own"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield server.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


def test_volumes_stay_usable_for_members_of_all_projects(own_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_DEFAULT_VOLUME", "results")
    upgrade(own_database, "0038")
    engine = make_engine(own_database)
    with engine.begin() as connection:
        for name in ("data", "output", "results"):
            connection.execute(
                text(
                    "INSERT INTO volumes (id, name, kind, config, is_read_only, created_at) "
                    "VALUES (:id, :name, 'pvc', '{}', false, :at)"
                ),
                {"id": f"volume-{name}", "name": name, "at": AT},
            )
    upgrade(own_database)
    with engine.begin() as connection:
        grants = connection.execute(
            text("SELECT volume_id, project_id, prefix, access FROM volume_grants ORDER BY volume_id")
        ).all()
        assert [tuple(row) for row in grants] == [
            ("volume-data", None, "", "write"),
            ("volume-output", None, "", "write"),
        ]
        events = connection.execute(select(Event.kind, Event.actor, Event.reason, Event.data).order_by(Event.id)).all()
        assert [(row.kind, row.actor, row.data["name"], row.data["grantee"]) for row in events] == [
            ("volume.granted", "migration", "data", "everyone"),
            ("volume.granted", "migration", "output", "everyone"),
        ]
        assert "trainmaster volumes revoke" in events[0].reason
    engine.dispose()
    downgrade(own_database, "0038")
    engine = make_engine(own_database)
    assert "volume_grants" not in inspect(engine).get_table_names()
    engine.dispose()


def test_a_database_of_a_newer_version_is_refused_and_stays_as_it_is(own_database: str) -> None:
    upgrade(own_database)
    engine = make_engine(own_database)
    with engine.begin() as connection:
        connection.execute(text("update alembic_version set version_num = '9999'"))
    with pytest.raises(NewerDatabase, match="belongs to a newer version of Trainmaster: it is at 9999"):
        upgrade(own_database)
    assert current_revision(engine) == "9999"
    engine.dispose()
