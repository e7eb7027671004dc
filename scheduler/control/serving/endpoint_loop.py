"""Reconciling endpoints: passes under the endpoint's lease, until there is nothing more to do now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from core.db.engine import unit_of_work
from core.db.repositories.serving import live_endpoints
from core.wakeups import TOPIC_ENDPOINT
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.leased_loop import LeasedLoop
from scheduler.control.serving.endpoint_pass import EndpointPass
from scheduler.control.serving.facts import EndpointFacts, load_endpoint
from scheduler.control.serving.probe import HealthProbe, probe_health

_MAX_PASSES: Final = 4
# A settled endpoint is reconciled this often; one that changes, with each message of the beat.
_SETTLED_RESYNC: Final = timedelta(seconds=3)
# Ready replicas are probed no more often, whatever wakes the endpoint up: three failures are to be of different
# moments.
_READY_PROBE_GAP: Final = timedelta(seconds=0.5)
# Follows the endpoint's id in the key of a timer's wake-up: ready replicas are not probed. Any of several processes may
# receive it, and each knows only the times of its own probes.
_WITHOUT_READY: Final = "/without-ready"

SetTimer = Callable[[str, str, datetime], None]  # topic and key of a wake-up, and when


def _no_timer(_topic: str, _key: str, _at: datetime) -> None:
    """The beat wakes the endpoint up a little later."""


class EndpointLoop:
    """One per process, thread-safe.

    ``own_server``: how plain processes start the platform's server; ``None``: replicas are containers. ``set_timer``:
    sends a wake-up when the endpoint is due, where that is sooner than the beat's message; ``reconcile`` understands
    its key.
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
        self._due: dict[str, datetime] = {}  # of settled endpoints
        self._loop = LeasedLoop(control, kind="endpoint", topic=TOPIC_ENDPOINT, max_passes=_MAX_PASSES)
        self._lock = threading.Lock()

    def reconcile(self, key: str) -> None:
        """Bring the endpoint as far as it goes now. Harmless to repeat, and to call from two threads at once.

        ``key``: the endpoint's id, or the key of a timer, which leaves ready replicas alone.

        Raises:
            Unavailable: the database is away.
        """
        endpoint_id = key.removesuffix(_WITHOUT_READY)
        recheck_at: datetime | None = None

        def run_pass(lease: RenewedLease) -> bool:
            nonlocal recheck_at
            with unit_of_work(self._control.sessions, read_only=True) as session:
                facts = load_endpoint(session, endpoint_id, self._control.clock())
            if facts is None:
                return False
            this = EndpointPass(self._control, lease, facts, self._probe, self._own_server)
            goes_on = this.run(probes_ready=endpoint_id == key and self._may_probe_ready(endpoint_id))
            recheck_at = this.recheck_at
            self._note_due(facts, goes_on=goes_on)
            return goes_on

        self._loop.reconcile(endpoint_id, run_pass)
        if recheck_at is not None:
            self._set_timer(TOPIC_ENDPOINT, endpoint_id + _WITHOUT_READY, recheck_at)

    def notify_due(self) -> None:
        """Wake up every endpoint that is due."""
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

    def _may_probe_ready(self, endpoint_id: str) -> bool:
        now = self._control.clock()
        with self._lock:
            last = self._ready_probed_at.get(endpoint_id)
            if last is not None and now - last < _READY_PROBE_GAP:
                return False
            self._ready_probed_at[endpoint_id] = now
            return True

    def _note_due(self, facts: EndpointFacts, *, goes_on: bool) -> None:
        with self._lock:
            if facts.is_settled and not goes_on:
                self._due[facts.id] = self._control.clock() + _SETTLED_RESYNC
            else:
                self._due.pop(facts.id, None)
