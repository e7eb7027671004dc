from __future__ import annotations

from tests.unit.api_core.conftest import end_attempt, set_job, start

__all__ = ["end_attempt", "set_job", "start"]
