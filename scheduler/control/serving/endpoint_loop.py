"""Keeping endpoints: one round after the other, under a fenced lease, until there is nothing more to do now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from core.db import leases
from core.db.engine import unit_of_work
from core.db.leases import HeldLease
from core.db.repositories.serving import live_endpoints
from core.domain.errors import StaleWrite, Unavailable
from core.wakeups import TOPIC_ENDPOINT
from scheduler.control import fence
from scheduler.messaging.work_queue import InFlight
from scheduler.control.context import ControlContext
from scheduler.control.serving.endpoint_pass import EndpointPass
from scheduler.control.serving.facts import EndpointFacts, load_endpoint
from scheduler.control.serving.probe import HealthProbe, probe_health

log = structlog.get_logger(__name__)

_MAX_ROUNDS: Final = 4
# An endpoint of which all is well is asked this often; one that moves, with each of beat's rings.
_SETTLED_LOOK: Final = timedelta(seconds=3)
# Ready replicas are asked no more often, whoever rings: three answers owed shall not be of one moment.
_READY_PROBE_GAP: Final = timedelta(seconds=0.5)
# After the endpoint's id in the key of an alarm's ring: ready replicas are not asked. Any process of many may take it, and
# each knows its own times alone.
_WITHOUT_READY: Final = "/without-ready"

SetTimer = Callable[[str, str, datetime], None]  # topic and key of a ring, and when


def _no_timer(_topic: str, _key: str, _at: datetime) -> None:
    """Beat rings a little later."""


class EndpointLoop:
    """One per process, safe for many threads.

    ``own_server``: how plain processes start the platform's server; ``None``: replicas are containers. ``alarm``: rings when
    the next look is due, where that is sooner than beat's ring; ``keep`` understands its key.
    """

    def __init__(
        self,
        control: ControlContext,
        own_server: Sequence[str] | None = None,
        probe: HealthProbe = probe_health,
        *,
        set_timer: SetTimer = _no_timer,
    ) -> None:
        self._control = control
        self._own_server = own_server
        self._probe = probe
        self._set_timer = set_timer
        self._ready_probed_at: dict[str, datetime] = {}
        self._due: dict[str, datetime] = {}  # of settled ones
        self._inflight: InFlight[str] = InFlight()
        self._lock = threading.Lock()

    def reconcile(self, key: str) -> None:
        """Bring the endpoint as far as it goes now. Harmless to repeat, and to call from two threads at once.

        ``key``: the endpoint's id, or the key of an alarm. An alarm's look leaves ready replicas alone.

        Raises:
            Unavailable: the database is away.
        """
        endpoint_id = key.removesuffix(_WITHOUT_READY)
        if not self._inflight.start(endpoint_id):
            return
        try:
            self._run_passes(endpoint_id, probes_ready=endpoint_id == key)
        finally:
            if self._inflight.finish(endpoint_id):
                self._control.wakeup.notify(TOPIC_ENDPOINT, endpoint_id)

    def notify_due(self) -> None:
        """Ring for every endpoint that is due for a look."""
        now = self._control.clock()
        with unit_of_work(self._control.sessions, read_only=True) as session:
            live = live_endpoints(session)
        with self._lock:
            known = set(live)
            self._due = {name: at for name, at in self._due.items() if name in known}
            self._ready_probed_at = {name: at for name, at in self._ready_probed_at.items() if name in known}
            due = [name for name in live if self._due.get(name, now) <= now]
        for endpoint_id in due:
            self._control.wakeup.notify(TOPIC_ENDPOINT, endpoint_id)

    def _run_passes(self, endpoint_id: str, *, probes_ready: bool) -> None:
        lease: HeldLease | None = None
        recheck_at: datetime | None = None
        for _ in range(_MAX_ROUNDS):
            try:
                lease, facts = self._load(endpoint_id, lease)
                if lease is None or facts is None:
                    break
                this = EndpointPass(self._control, lease, facts, self._probe, self._own_server)
                goes_on = this.run(probes_ready=probes_ready and self._may_probe_ready(endpoint_id))
                lease, recheck_at = this.lease, this.recheck_at
                self._note(facts, goes_on=goes_on)
            except StaleWrite as stale:
                log.debug("endpoint.stale", endpoint=endpoint_id, why=str(stale))
                lease = None  # somebody moved it meanwhile: look again, if we still may
                continue
            if not goes_on:
                break
        if lease is not None:
            try:
                fence.release(self._control, lease)
            except Unavailable:
                pass  # it expires by itself
        if recheck_at is not None:
            self._set_timer(TOPIC_ENDPOINT, endpoint_id + _WITHOUT_READY, recheck_at)

    def _may_probe_ready(self, endpoint_id: str) -> bool:
        now = self._control.clock()
        with self._lock:
            last = self._ready_probed_at.get(endpoint_id)
            if last is not None and now - last < _READY_PROBE_GAP:
                return False
            self._ready_probed_at[endpoint_id] = now
            return True

    def _load(self, endpoint_id: str, lease: HeldLease | None) -> tuple[HeldLease | None, EndpointFacts | None]:
        control = self._control
        with unit_of_work(control.sessions, read_only=lease is not None) as session:
            now = control.clock()
            if lease is None:
                lease = leases.acquire(
                    session, f"endpoint:{endpoint_id}", holder=control.holder, now=now, ttl=control.lease_ttl
                )
            return lease, load_endpoint(session, endpoint_id, now) if lease is not None else None

    def _note(self, facts: EndpointFacts, *, goes_on: bool) -> None:
        """Remember when it is due again."""
        with self._lock:
            if facts.is_settled and not goes_on:
                self._due[facts.id] = self._control.clock() + _SETTLED_LOOK
            else:
                self._due.pop(facts.id, None)
