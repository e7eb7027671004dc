"""For tests of files, not of SQL: one kind of database is enough, and half as much to wait for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def database_url(sqlite_template: Path, tmp_path: Path) -> str:
    """An empty, migrated database."""
    path = tmp_path / "trainmaster.sqlite3"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"
