from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sqlalchemy import select

from core.db.engine import SessionFactory, make_engine, make_sessions, unit_of_work
from core.db.tables import Token, User
from core.tokens import token_digest

ROOT = Path(__file__).parents[3]


def bootstrap(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "migrations", "bootstrap", *options],
        cwd=ROOT,
        env={**os.environ, "TRAINMASTER_HOME": str(home), "TRAINMASTER_DATABASE_URL": ""},
        capture_output=True,
        text=True,
        check=True,
    )


def admins(sessions: SessionFactory) -> set[str]:
    with unit_of_work(sessions, read_only=True) as session:
        query = select(Token.digest).join(User, User.id == Token.user_id).where(User.name == "admin", User.is_admin)
        return set(session.execute(query).scalars())


def test_the_first_admin_gets_a_token_once_and_another_when_asked(tmp_path: Path) -> None:
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
