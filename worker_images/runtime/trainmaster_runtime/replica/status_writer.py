"""The replica's status, for the executor."""

from __future__ import annotations

from trainmaster_runtime import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainmaster_runtime.record import StateFolder
    from trainmaster_runtime.replica.worlds import WorldChanges


class StatusWriter:
    """Phase, detail and facts, written as they change. ``worlds``: of an elastic gang."""

    def __init__(self, state: StateFolder) -> None:
        self._state = state
        self._started_at = ""
        self.facts: dict[str, Any] = {}
        self.worlds: WorldChanges | None = None

    def set_pending(self, detail: str, facts: dict[str, Any] | None = None) -> None:
        self._state.write_status(phase="pending", detail=detail, **({} if facts is None else {"facts": facts}))

    def set_running(self, detail: str = "") -> None:
        """Its processes run; one that joins an elastic gang waits for its world still."""
        if self.worlds is not None:
            self.facts.update(self.worlds.facts())
            self.worlds.show()
            if self.worlds.is_joining:
                self.set_pending("Waiting for its place in the gang.", self.facts)
                return
        self._started_at = self._started_at or clock.stamp(clock.now())
        self._state.write_status(phase="running", detail=detail, started_at=self._started_at, facts=self.facts)
