"""The queue, quotas and the rest that the planner goes by again, on PostgreSQL."""

from __future__ import annotations

import pytest

from tests.unit.api_files.test_queue_and_quotas import *  # noqa: F403 (the same tests, another database)

pytestmark = pytest.mark.postgres
