from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import select

from core.db.engine import SessionFactory, make_engine, make_sessions, unit_of_work
from core.db.tables import Token, User, Volume, VolumeGrant
from core.tokens import token_digest

ROOT = Path(__file__).parents[3]


def bootstrap(home: Path, *options: str, check: bool = True, volumes: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "migrations", "bootstrap", *options],
        cwd=ROOT,
        env={
            **os.environ,
            "TRAINMASTER_HOME": str(home),
            "TRAINMASTER_DATABASE_URL": "",
            "TRAINMASTER_FIRST_VOLUMES": volumes,
        },
        capture_output=True,
        text=True,
        check=check,
    )


def admins(sessions: SessionFactory) -> set[str]:
    with unit_of_work(sessions, read_only=True) as session:
        query = select(Token.digest).join(User, User.id == Token.user_id).where(User.name == "admin", User.is_admin)
        return set(session.execute(query).scalars())


def test_the_first_admin_gets_a_token_once_and_another_when_queried(tmp_path: Path) -> None:
    first = bootstrap(tmp_path).stdout.strip()
    again = bootstrap(tmp_path)
    second = bootstrap(tmp_path, "--new-token").stdout.strip()
    engine = make_engine(f"sqlite:///{tmp_path / 'trainmaster.sqlite3'}")
    found = admins(make_sessions(engine))
    engine.dispose()
    assert first.startswith("tm_")
    assert (again.stdout, "--new-token" in again.stderr) == ("", True)
    assert second != first
    assert found == {token_digest(first), token_digest(second)}


def test_an_installer_finds_the_token_in_a_file_that_stays_and_the_folders_made(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert bootstrap(tmp_path, "--token-file", str(file)).stdout == ""
    made = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    again = bootstrap(tmp_path, "--token-file", str(file))
    assert "knows it already" in again.stderr
    chosen = tmp_path / "chosen"
    chosen.write_text(f"tm_{'x' * 40}\n")
    bootstrap(tmp_path, "--token-file", str(chosen))
    engine = make_engine(f"sqlite:///{tmp_path / 'trainmaster.sqlite3'}")
    found = admins(make_sessions(engine))
    engine.dispose()
    assert found == {token_digest(made), token_digest(f"tm_{'x' * 40}")}
    assert {"archives", "data", "output", "run"} <= {path.name for path in tmp_path.iterdir()}


def test_a_file_that_holds_no_token_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("changeme\n")
    refused = bootstrap(tmp_path, "--token-file", str(file), check=False)
    assert refused.returncode == 1
    assert refused.stderr.strip() == f"{file} holds no token: write `tm_` and 32 or more letters and digits into it."


def test_an_installer_says_where_the_first_volumes_are(tmp_path: Path) -> None:
    nfs = {"name": "output", "kind": "nfs", "root": "/mnt/o", "config": {"server": "nas", "path": "/o"}}
    others: list[dict[str, Any]] = [
        {"name": "data", "kind": "pvc", "config": {"claim": "data"}},
        {"name": "sets", "kind": "pvc", "config": {"claim": "sets"}},
        {"name": "open", "kind": "pvc", "config": {"claim": "open"}, "everyone": "read"},
    ]
    bootstrap(tmp_path, volumes=json.dumps([nfs, *others]))
    engine = make_engine(f"sqlite:///{tmp_path / 'trainmaster.sqlite3'}")
    with unit_of_work(make_sessions(engine), read_only=True) as session:
        found = {v.name: (v.kind, v.root, v.config) for v in session.execute(select(Volume)).scalars()}
        query = select(Volume.name, VolumeGrant.project_id, VolumeGrant.prefix, VolumeGrant.access)
        grants = session.execute(query.join(VolumeGrant, VolumeGrant.volume_id == Volume.id)).all()
    engine.dispose()
    assert found["output"] == ("nfs", "/mnt/o", {"server": "nas", "path": "/o"})
    assert sorted(map(tuple, grants)) == [("data", None, "", "write"), ("open", None, "", "read")]


def test_volumes_that_make_no_sense_are_refused_in_one_sentence(tmp_path: Path) -> None:
    refused = bootstrap(tmp_path, check=False, volumes='[{"name": "output", "kind": "floppy"}]')
    assert refused.returncode == 1
    assert refused.stderr.startswith("TRAINMASTER_FIRST_VOLUMES cannot be used: write a JSON list")
    assert "Traceback" not in refused.stderr
