"""Bookings: nodes that administrators reserved for a project, and from when on they are unavailable to
other projects.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from scheduler.planning.explain import phrases
from scheduler.planning.model import Booking, Reason, ReasonCode, Snapshot
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.ledger import NEVER

_NOTHING: Final[frozenset[int]] = frozenset()


class Bookings:
    """The bookings that are not over, as the nodes that each project loses to other projects."""

    def __init__(self, snapshot: Snapshot, cluster: ClusterIndex) -> None:
        self._now = snapshot.now
        self._cluster = cluster
        self._all = sorted(
            (b for b in snapshot.bookings if b.ends_at > snapshot.now and b.ends_at > b.begins_at),
            key=lambda b: (b.begins_at, b.ends_at, b.id),
        )
        self._foreign: dict[str, tuple[list[float], list[Booking]]] = {}
        self._hidden: dict[tuple[str, int], frozenset[int]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._all

    def hidden(self, project: str, run_time_s: float) -> frozenset[int]:
        """Nodes unavailable to a job of ``project`` that starts now and runs for at most ``run_time_s`` seconds."""
        if not self._all:
            return _NOTHING
        begins_s, _ = self._of_others(project)
        return self._first(project, bisect_left(begins_s, run_time_s))

    def ever_hidden(self, project: str) -> frozenset[int]:
        """Nodes that are booked for other projects, now or later."""
        return self.hidden(project, NEVER)

    def _first(self, project: str, count: int) -> frozenset[int]:
        key = (project, count)
        found = self._hidden.get(key)
        if found is None:
            number_of, booked = self._cluster.number_of, self._of_others(project)[1][:count]
            found = frozenset(number_of[node] for b in booked for node in b.nodes if node in number_of)
            self._hidden[key] = found
        return found

    def _of_others(self, project: str) -> tuple[list[float], list[Booking]]:
        """Seconds until each booking begins (-1: has begun, so that no job ends before it), and the bookings."""
        found = self._foreign.get(project)
        if found is None:
            booked = [b for b in self._all if b.project != project]
            begins_s = [(b.begins_at - self._now).total_seconds() for b in booked]
            found = self._foreign[project] = ([at if at > 0 else -1.0 for at in begins_s], booked)
        return found

    def reason(self, project: str, run_time_s: float, wanted: frozenset[int], *, is_free: bool) -> Reason:
        """Why a job may not use the nodes ``wanted``, which are hidden from it. ``is_free``: it would fit there now."""
        begins_s, booked = self._of_others(project)
        names = {self._cluster.nodes[number].id for number in wanted}
        ours = [b for b in booked[: bisect_left(begins_s, run_time_s)] if not names.isdisjoint(b.nodes)]
        first = ours[0]
        nodes = sorted(names & first.nodes)
        until = phrases.about(first.ends_at, self._now)
        is_on = first.begins_at <= self._now
        when = f"until {until}" if is_on else f"from {phrases.about(first.begins_at, self._now)} until {until}"
        be = "is" if len(nodes) == 1 else "are"
        fits = "would fit now, but" if is_free else "does not fit without nodes that are not for it:"
        sentence = f"{fits} {phrases.some_of(nodes)} {be} reserved for project {first.project} ({first.name}) {when}"
        if not is_on:
            sentence += "; with a max_run_time that surely ends before that it could run first"
        numbers = {
            "booking": first.id,
            "name": first.name,
            "project": first.project,
            "nodes": nodes,
            "from": first.begins_at.isoformat(),
            "until": first.ends_at.isoformat(),
        }
        return Reason(ReasonCode.BOOKED, sentence, numbers)
