from __future__ import annotations

from tests.unit.api_core.conftest import end_attempt, reporter, set_job, start, submit

__all__ = ["end_attempt", "reporter", "set_job", "start", "submit"]
