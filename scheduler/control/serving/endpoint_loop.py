"""Reconciling endpoints: passes under the endpoint's lease, until there is nothing more to do now.

A pass probes the endpoint's replicas, decides, and writes all changes at once. Load → work → write, as for attempts and
studies: no transaction is open while replicas are probed, every write is fenced by the endpoint's lease and compares
the deployment's generation, and a replica's row is written together with its job. So a process may be killed between
any two steps, and the next pass sees the same truth.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import update
from sqlalchemy.orm import Session
from trainmaster.spec import parse_spec

from core.db.engine import unit_of_work
from core.db.repositories.events import append_event
from core.db.repositories.serving import change_deployment, deployed_versions, live_deployments, live_endpoints
from core.db.repositories.submission import JobSubmission, new_job, write_job
from core.db.tables import DeploymentRevision, Endpoint, ServingReplica, User
from core.domain.serving.jobs import holder_of, replica_job
from core.domain.serving.rollout import (
    DeploymentState,
    RolloutEvent,
    RolloutPlan,
    ServingReplicaStatus,
    ServingState,
    plan,
)
from core.registry.versions import release
from core.wakeups import TOPIC_ENDPOINT, TOPIC_TICK
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.journal import SCHEDULER
from scheduler.control.leased_loop import LeasedLoop
from scheduler.control.serving.facts import DeploymentFacts, EndpointFacts, columns_of, load_endpoint
from scheduler.control.serving.probe import HealthProbe, ProbeResult, probe_all, probe_health
from scheduler.control.transitions import cancel_job

# Jobs that one pass starts for one deployment: the next pass starts the others.
_MAX_STARTS: Final = 25
# Of a replica's name: the part of its job's id, and the rest for the endpoint's and the deployed model's names.
_TAIL: Final = 5
_NAME: Final = 63 - 1 - _TAIL
# Probing all replicas of an endpoint takes no longer: the lease must outlive it, and other work waits for this thread.
_PROBING_S: Final = 5.0
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


class EndpointPass:
    """``run`` does what is next, and returns whether there may be more. ``recheck_at``: when time alone may change
    something.
    """

    def __init__(
        self,
        control: ControlContext,
        lease: RenewedLease,
        facts: EndpointFacts,
        probe: HealthProbe,
        own_server: Sequence[str] | None,
    ) -> None:
        self.control = control
        self._lease = lease
        self.facts = facts
        self.recheck_at: datetime | None = None
        self._probe = probe
        self._own_server = own_server

    def run(self, *, probes_ready: bool = True) -> bool:
        """``probes_ready``: whether ready replicas are probed as well.

        Raises:
            StaleWrite: another process has moved something meanwhile.
        """
        health = self._probe_replicas(probes_ready=probes_ready)
        self._lease.renew()  # probing may have taken seconds
        goes_on = False
        for deployment in self.facts.deployments:
            goes_on |= self._reconcile_deployment(deployment, health)
        if self.facts.is_deleting and not self.facts.deployments:
            self._delete()
        return goes_on

    def _probe_replicas(self, *, probes_ready: bool) -> Mapping[str, ProbeResult]:
        """Health of the running replicas that are to serve; without ``probes_ready`` of the starting ones only."""
        targets = {
            server.id: (deployment.addresses[server.id], deployment.specs[server.revision].health_route)
            for deployment in self.facts.deployments
            for server in deployment.deployed.servers
            if deployment.deployed.state is not DeploymentState.UNDEPLOYING
            and server.id in deployment.addresses
            and server.state.is_up
            and (probes_ready or server.state is not ServingState.READY)
            and not (server.is_over or server.is_cancelled)
        }
        within_s = min(_PROBING_S, self.control.lease_ttl.total_seconds() / 3)
        return probe_all(self._probe, targets, within_s=within_s)

    def _reconcile_deployment(self, facts: DeploymentFacts, health: Mapping[str, ProbeResult]) -> bool:
        """Do what is due for one deployment; whether a replica was started or stopped."""
        now = self.control.clock()
        servers = tuple(_with_health(server, health.get(server.id)) for server in facts.deployed.servers)
        steps = plan(replace(facts.deployed, servers=servers), now)
        if steps.recheck_at is not None and (self.recheck_at is None or steps.recheck_at < self.recheck_at):
            self.recheck_at = steps.recheck_at
        after = [steps.servers.get(server.id, server) for server in servers]
        columns = {server.id: columns_of(server, facts.addresses.get(server.id, "")) for server in after}
        changed_columns = {name: values for name, values in columns.items() if values != facts.written[name]}
        if not (steps or changed_columns):
            return False
        wakeups: list[tuple[str, str]] = []
        with self._lease.fenced() as session:
            if steps:
                self._change(session, facts, steps, now)
            for name, values in changed_columns.items():
                end_values = {"ended_at": now} if values["state"] == ServingState.ENDED.value else {}
                session.execute(update(ServingReplica).where(ServingReplica.id == name).values(**values, **end_values))
            for name, sentence in steps.cancel.items():
                wakeups += cancel_job(session, facts.jobs[name], "serving", sentence, now)
            if steps.start:
                self._start_replicas(session, facts, steps, now)
                wakeups.append((TOPIC_TICK, ""))
            for event in steps.events:
                self._add_event(session, now, event, deployment=facts.name)
        for topic, key in dict.fromkeys(wakeups):
            self.control.wakeup.notify(topic, key)
        return bool(steps.start or steps.cancel)

    def _change(self, session: Session, facts: DeploymentFacts, steps: RolloutPlan, now: datetime) -> None:
        after = steps.deployed
        end_values = {"ended_at": now} if after.state is DeploymentState.ENDED else {}
        split = facts.split_when_ready if after.stable_revision is not None else None
        split_values = {"split_when_ready": None} if split is not None else {}
        change_deployment(
            session, facts.id, facts.generation, now,
            state=after.state.value, target_revision=after.target_revision, stable_revision=after.stable_revision,
            **end_values, **split_values,
        )  # fmt: skip
        if split is not None:
            self._set_traffic(session, split, now)
        if end_values:
            for version_id in deployed_versions(session, facts.id):
                release(session, version_id, holder_of(self.facts.name, facts.name))
        before = {revision.number: revision for revision in facts.deployed.revisions}
        for revision in after.revisions:
            if revision != before[revision.number]:
                session.execute(
                    update(DeploymentRevision)
                    .where(DeploymentRevision.deployment_id == facts.id, DeploymentRevision.number == revision.number)
                    .values(
                        failures=revision.failures,
                        failed_at=revision.failed_at,
                        stable_at=revision.stable_at,
                        failure_reason=revision.failure_reason,
                    )
                )

    def _set_traffic(self, session: Session, split: Mapping[str, int], now: datetime) -> None:
        """Set the traffic of each deployed model. The part of a model that is gone is left to the others."""
        for row in live_deployments(session, [self.facts.id]):
            part = split.get(row.name, 0)
            if row.traffic != part and row.state != DeploymentState.UNDEPLOYING:
                change_deployment(session, row.id, row.generation, now, traffic=part)
        words = ", ".join(f"{name} {part} %" for name, part in split.items())
        self._add_event(session, now, RolloutEvent("endpoint.traffic_set", words))

    def _start_replicas(self, session: Session, facts: DeploymentFacts, steps: RolloutPlan, now: datetime) -> None:
        """Write the jobs of new replicas, each with its row."""
        number = steps.deployed.target_revision
        raw = replica_job(
            facts.specs[number],
            project=self.facts.project,
            endpoint=self.facts.name,
            deployment=facts.name,
            revision=number,
            own_server=self._own_server,
        )
        whole = parse_spec(raw)  # cannot be refused: it was checked when it was deployed
        # Permitted when it was deployed, as the restart of a job is: an endpoint is the project's, and does not decay
        # because a user has left.
        reason = f"Serves revision {number} of {facts.name} at endpoint {self.facts.name}."
        user = session.get_one(User, facts.user_ids[number])
        if user.disabled_at is not None:
            reason += (
                f" It runs in the name of user {user.name}, who is disabled: deploy it again to have it in another "
                "name."
            )
        for _ in range(min(steps.start, _MAX_STARTS)):
            job_id = self.control.make_id("job")
            # Distinct names: messages about a job, such as those of jobs that wait for its place, contain its name.
            spec = whole.model_copy(update={"name": f"{whole.name[:_NAME].rstrip('._-')}-{job_id[-_TAIL:]}"})
            order = JobSubmission(
                id=job_id, spec=spec, project_id=self.facts.project_id, project=self.facts.project,
                user_id=facts.user_ids[number], output_volume=self.control.default_volume,
            )  # fmt: skip
            write_job(session, new_job(order, now=now, actor=SCHEDULER, reason=reason), None)
            session.add(
                ServingReplica(
                    id=self.control.make_id("serving"), deployment_id=facts.id, revision=number, job_id=order.id,
                    state=ServingState.STARTING.value, address="", failed_probes=0,
                    message="Its job waits for a place.", created_at=now,
                )
            )  # fmt: skip

    def _delete(self) -> None:
        now = self.control.clock()
        with self._lease.fenced() as session:
            session.execute(
                update(Endpoint)
                .where(Endpoint.id == self.facts.id, Endpoint.deleted_at.is_(None))
                .values(deleted_at=now, updated_at=now)
            )
            self._add_event(session, now, RolloutEvent("endpoint.deleted", "Nothing of it runs any more."))

    def _add_event(
        self, session: Session, now: datetime, event: RolloutEvent, *, deployment: str | None = None
    ) -> None:
        data = {"endpoint": self.facts.id, "name": self.facts.name}
        if deployment is not None:
            data["deployment"] = deployment
        append_event(
            session, at=now, kind=event.kind, actor=SCHEDULER, project_id=self.facts.project_id, reason=event.sentence,
            data=data,
        )  # fmt: skip


def _with_health(server: ServingReplicaStatus, health: ProbeResult | None) -> ServingReplicaStatus:
    if health is None:
        return server
    return replace(server, is_healthy=health.is_ready, message=health.words)


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
            endpoint_pass = EndpointPass(self._control, lease, facts, self._probe, self._own_server)
            goes_on = endpoint_pass.run(probes_ready=endpoint_id == key and self._may_probe_ready(endpoint_id))
            recheck_at = endpoint_pass.recheck_at
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
