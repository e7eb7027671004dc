"""The table of who may do what again, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.databases import empty, remember
from tests.unit.api_files.permissions import test_permissions
from tests.unit.api_files.permissions.test_permissions import *  # noqa: F403 (the same tests, another database)
from tests.unit.api_files.permissions.test_permissions import Stage

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")  # type: ignore[no-redef]
def stage(tmp_path_factory: pytest.TempPathFactory, postgres_engine: Engine) -> Iterator[Stage]:
    empty(postgres_engine)
    with test_permissions.make_stage(tmp_path_factory.mktemp("house"), postgres_engine) as house:
        restore_rows = remember(postgres_engine)

        def restore() -> None:
            restore_rows()
            test_permissions.forget(house)

        yield house, restore
