"""For tests of files, not of SQL: one kind of database is enough, and half as much to wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.databases import copied_database


@pytest.fixture
def database_url(sqlite_template: Path) -> str:
    """An empty, migrated database."""
    return copied_database(sqlite_template)
