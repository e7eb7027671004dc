"""A job's log files, its ranks, and its status for log streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.spec import JobSpec
from trainmaster.spec.enums import role_order
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import LogSource

from api.app.unit_of_work import AppContext
from api.attempts import exit_view
from api.auth import JobAccess
from api.http.paging import PageQuery, cut, make_cursor, read_cursor
from core.db.tables import Job
from core.domain.contracts import world_of
from core.domain.errors import InvalidRequest, NotFound
from core.domain.jobs.layout import Layout, Ports, ReplicaAddress
from core.domain.jobs.states import JobState
from core.storage.logs.files import JobLogs, LogFile, Order
from core.storage.volumes import job_output


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of the job that a log stream reports."""

    job_id: str
    state: JobState
    attempt_count: int
    exit: Mapping[str, Any] | None

    @property
    def as_json(self) -> dict[str, Any]:
        view = exit_view(self.exit)  # without the control loop's internal fields
        return {
            "state": self.state.value,
            "attempt_count": self.attempt_count,
            "exit": None if view is None else view.model_dump(),
        }


@dataclass(frozen=True, slots=True)
class LogView:
    """A job's logs, its status, and the first rank and number of processes of each replica."""

    status: JobStatus
    logs: JobLogs
    ranks: Mapping[tuple[str, int], tuple[int, int]]


def open_logs(context: AppContext, access: JobAccess) -> LogView:
    """Raises ``NotFound``, ``Forbidden``, ``Conflict`` (the control plane cannot read the volume)."""
    with context.read() as work:
        job = access.load(work.session)
        return LogView(
            _status_of(job), JobLogs(job_output(work.session, job), job.id), ranks_of(JobSpec.model_validate(job.spec))
        )


def read_status(context: AppContext, access: JobAccess) -> JobStatus:
    """The job's state now; raises ``NotFound`` when it was deleted or the caller has lost access."""
    with context.read() as work:
        return _status_of(access.load(work.session))


def sources(logs: JobLogs, page: PageQuery) -> Page[LogSource]:
    """Attempts in order, and each one's replicas in the order of roles and indices. Reads only the page's folders."""
    after: Order | None = None
    if page.cursor is not None:
        attempt, role, index = read_cursor(page.cursor, (int, str, int))
        after = (attempt, role_order(role), index)
    found, has_more = cut(logs.all_files(after=after), page.limit)
    items = [
        LogSource(attempt=f.attempt, role=f.role, index=f.index, name=f.name, size_bytes=f.size_bytes) for f in found
    ]
    last = items[-1] if has_more else None
    return Page(items=items, next_cursor=make_cursor(last.attempt, last.role, last.index) if last else None)


def newest_attempt_with(logs: JobLogs, name: str) -> LogFile:
    """The newest attempt in which the replica ``name`` has written. Raises ``NotFound``."""
    for number in reversed(logs.attempts()):
        for file in logs.files(number):
            if file.name == name:
                return file
    raise NotFound(f"There is no log {name!r} yet; `GET …/logs` lists what there is.")


def ranks_of(spec: JobSpec) -> dict[tuple[str, int], tuple[int, int]]:
    """(first rank, processes) of each replica that has ranks, equal to those in its environment; a ps has none."""
    # Ranks do not depend on addresses, so this is valid for attempts without a layout, too.
    addresses = tuple(
        ReplicaAddress(name, index, "", Ports(), "", processes=role.process_count)
        for name, role in spec.ordered_roles()
        for index in range(role.replicas)
    )
    return {
        (member.address.role, member.address.index): (member.first_rank, member.processes)
        for member in world_of(spec, Layout(addresses)).members
    }


def demand_rank(view: LogView, rank: int) -> None:
    """Raises ``InvalidRequest`` when no process of the job has this rank: the stream would stay empty."""
    count = sum(processes for _, processes in view.ranks.values())
    if rank >= count:
        has = "no ranks" if not count else "1 rank" if count == 1 else f"{count} ranks"
        raise InvalidRequest(
            f"rank: the job has {has}, from 0; processes that the command itself starts (torchrun, mpirun) count as "
            "one per replica.",
            field="rank",
        )


def _status_of(job: Job) -> JobStatus:
    return JobStatus(job.id, JobState(job.state), job.attempt_count, job.exit)
