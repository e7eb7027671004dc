"""Runs: one per attempt, with a child run per further replica; scripts may create more. Their JSON, as MLflow's.

A project is an experiment. The name, start and end of an attempt's run come from the platform; rows exist only for
parameters, tags and inputs, and for the runs that scripts created.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import orjson
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.app.audit import note_object
from api.app.unit_of_work import UnitOfWork
from api.protocols.kit.json_values import from_milliseconds, milliseconds
from api.protocols.kit.script_access import ReadScope, ScriptAttempt, roles_of
from api.protocols.mlflow.schemas import TAG, CreateRun, Param, UpdateRun
from api.protocols.mlflow.schemas import Tag as SentTag
from core.db.engine import UntypedSelect, insert_into
from core.db.tables import Attempt, Job, MlflowModel, MlflowRun, Project, User
from core.domain.contracts.mlflow import main_role, replica_of_run
from core.domain.errors import Forbidden, InvalidRequest, NotFound
from core.domain.jobs.exits import ExitKind
from core.domain.jobs.states import AttemptState
from core.ids import new_id

RUN_PREFIX: Final = "run"
_WORDS: Final = 14  # parts of a run's id between hyphens: an attempt's id has two, a role's name at most ten
_RUNS_OF_JOB: Final = 1_000  # created by scripts
_PAIRS_OF_RUN: Final = 2_000
_BYTES_OF_RUN: Final = 512 * 2**10  # of parameters, of tags, of inputs

# https://mlflow.org/docs/latest/rest-api.html#runstatus, by its numbers
STATUSES: Final = ("", "RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run. ``row``: logged data, if any."""

    id: str
    project_id: str
    job_id: str
    job_name: str
    user: str
    attempt_id: str
    attempt_number: int
    roles: Mapping[str, int]
    replica: str  # of the run; empty: a script created it
    name: str
    status: str
    started_at: datetime
    ended_at: datetime | None
    row: MlflowRun | None

    @property
    def is_main(self) -> bool:
        return self.id == self.attempt_id

    @property
    def is_made_by_script(self) -> bool:
        return not self.replica

    @property
    def params(self) -> Mapping[str, str]:
        return self.row.params if self.row is not None else {}

    @property
    def tags(self) -> dict[str, str]:
        """Tags that were set, over the platform's own."""
        known = {
            "mlflow.runName": self.name,
            "mlflow.user": self.user,
            "mlflow.source.type": "JOB",
            "mlflow.source.name": self.job_name,
            "trainmaster.job": self.job_id,
            "trainmaster.attempt": str(self.attempt_number),
        }
        if self.replica:
            known["trainmaster.replica"] = self.replica
        if self.replica and not self.is_main:
            known["mlflow.parentRunId"] = self.attempt_id
        return {**known, **(self.row.tags if self.row is not None else {})}


def run_query() -> UntypedSelect:
    """Selects attempt, job and user name: the platform's data of an attempt's runs."""
    return (
        select(Attempt, Job, User.name)
        .join(Job, Job.id == Attempt.job_id)
        .join(User, User.id == Job.user_id)
        .where(Job.deleted_at.is_(None))
    )


def find_run(session: Session, scope: ReadScope, run_id: str) -> RunFacts:
    """A readable run. Raises ``NotFound``."""
    note_object("run", run_id)
    row = session.get(MlflowRun, run_id)
    # A replica's run without logged data has no row: its id contains the attempt's.
    candidates = [row.attempt_id] if row is not None else _possible_attempt_ids(run_id)
    attempt_row = session.execute(run_query().where(Attempt.id.in_(candidates))).first()
    if attempt_row is not None and scope.has_job(attempt_row[1].project_id, attempt_row[1].id):
        run = facts_of(attempt_row, run_id, row)
        if run is not None:
            return run
    raise NotFound(f"There is no run {run_id!r} that you may see.")


def facts_of(attempt_row: Sequence[Any], run_id: str, row: MlflowRun | None) -> RunFacts | None:
    """The run ``run_id`` of an attempt; ``None`` if it has no such replica. ``attempt_row``: a row of ``run_query``."""
    attempt, job, user = attempt_row
    roles = roles_of(job.gang)
    facts = partial(
        RunFacts,
        id=run_id,
        project_id=job.project_id,
        job_id=job.id,
        job_name=job.name,
        user=user,
        attempt_id=attempt.id,
        attempt_number=attempt.number,
        roles=roles,
        row=row,
    )
    if row is not None and not row.replica:
        return facts(
            replica="",
            name=row.name,
            # A run that its script did not end ends with the attempt.
            status=row.status if row.ended_at is not None else _status(attempt),
            started_at=row.started_at,
            ended_at=row.ended_at or attempt.ended_at,
        )
    replica = _replica(run_id, attempt.id, roles)
    if replica is None:
        return None
    suffix = f"-{attempt.number}" if attempt.number > 1 else ""
    name = f"{job.name}{suffix}" if run_id == attempt.id else f"{job.name}{suffix} {replica}"
    return facts(
        replica=replica,
        name=(row.name if row is not None else "") or name,
        status=_status(attempt),
        started_at=attempt.started_at or attempt.created_at,
        ended_at=attempt.ended_at,
    )


def writable_run(session: Session, attempt: ScriptAttempt, run_id: str) -> RunFacts:
    """A run of the attempt's own job.

    Raises:
        NotFound: not a run of this job; other jobs' runs are not revealed.
    """
    if not run_id:
        raise InvalidRequest("run_id is missing.", field="run_id")
    run = find_run(session, attempt.scope, run_id)
    if run.row is not None and run.row.is_deleted:
        raise Forbidden(f"The run {run_id!r} is deleted; restore it to log to it.")
    return run


def lock_row(work: UnitOfWork, run: RunFacts) -> MlflowRun:
    """The run's row, created if missing, locked until the transaction ends."""
    values = {
        "id": run.id,
        "project_id": run.project_id,
        "job_id": run.job_id,
        "attempt_id": run.attempt_id,
        "replica": run.replica,
        "name": "",
        "status": "RUNNING",
        "is_deleted": False,
        "params": {},
        "tags": {},
        "inputs": {},
        "outputs": [],
        "started_at": run.started_at,
    }
    if run.row is None:
        insert = insert_into(work.session, MlflowRun).values(**values)
        work.session.execute(insert.on_conflict_do_nothing(index_elements=["id"]))
    query = select(MlflowRun).where(MlflowRun.id == run.id).with_for_update()
    return work.session.execute(query.execution_options(populate_existing=True)).scalar_one()


def create_run(work: UnitOfWork, attempt: ScriptAttempt, sent: CreateRun) -> RunFacts:
    """A run that the script creates in addition to its replica's, such as a trial, a fold or a nested run."""
    count = select(func.count()).where(MlflowRun.job_id == attempt.job_id, MlflowRun.replica == "")
    if work.session.execute(count).scalar_one() >= _RUNS_OF_JOB:
        raise Forbidden(f"This job has made {_RUNS_OF_JOB} runs already; log to one of them.")
    tags = {tag.key: tag.value for tag in sent.tags}
    name = sent.run_name or tags.get("mlflow.runName") or f"{attempt.job_name} {new_id(RUN_PREFIX)[-4:]}"
    row = MlflowRun(
        id=new_id(RUN_PREFIX),
        project_id=attempt.project_id,
        job_id=attempt.job_id,
        attempt_id=attempt.attempt_id,
        replica="",
        name=name,
        status="RUNNING",
        params={},
        tags={**tags, "mlflow.runName": name},
        inputs={},
        outputs=[],
        started_at=work.now if sent.start_time is None else from_milliseconds(sent.start_time),
    )
    work.session.add(row)
    work.session.flush()
    return writable_run(work.session, attempt, row.id)


def update_run(work: UnitOfWork, run: RunFacts, sent: UpdateRun) -> None:
    """Set the name, and the end of a script's own run; an attempt's end comes from the platform."""
    if not (sent.run_name or run.is_made_by_script):
        return
    row = lock_row(work, run)
    if sent.run_name:
        row.name = sent.run_name
        row.tags = {**row.tags, "mlflow.runName": sent.run_name}
    if run.is_made_by_script and sent.status is not None:
        row.status = parse_status(sent.status)
        is_over = row.status not in ("RUNNING", "SCHEDULED")
        row.ended_at = None if not is_over else work.now if sent.end_time is None else from_milliseconds(sent.end_time)


def set_params(row: MlflowRun | MlflowModel, params: Iterable[Param]) -> None:
    """Add parameters. Raises ``InvalidRequest`` for a changed value: parameters are immutable."""
    values = dict(row.params)
    for param in params:
        before = values.setdefault(param.key, param.value)
        if before != param.value:
            raise InvalidRequest(
                f"Changing param values is not allowed: {param.key!r} of {row.id} has the value {before[:200]!r}, not "
                f"{param.value[:200]!r}; log it under another name.",
                field="params",
            )
    row.params = _bounded(values, "parameters")


def set_tags(row: MlflowRun | MlflowModel, tags: Iterable[SentTag]) -> None:
    values = {**row.tags, **{tag.key: tag.value for tag in tags}}
    if isinstance(row, MlflowRun) and "mlflow.runName" in values:
        row.name = values["mlflow.runName"]
    row.tags = _bounded(values, "tags")


def append_model_history(row: MlflowRun, model_json: str) -> None:
    """Append to the model history that clients before MLflow 3 store in a tag; drops the oldest beyond the limit.

    Raises:
        InvalidRequest: invalid JSON, or the tag has another value.
    """
    try:
        history = [*orjson.loads(row.tags.get("mlflow.log-model.history", "[]")), orjson.loads(model_json)]
        orjson.dumps(history)  # TypeError: nested too deeply to be serialised
    except (orjson.JSONDecodeError, TypeError) as error:
        raise InvalidRequest(
            "model_json is no JSON that can be kept, or the tag mlflow.log-model.history is none.", field="model_json"
        ) from error
    while len(text := orjson.dumps(history).decode()) > TAG and len(history) > 1:
        del history[0]
    if len(text) <= TAG:
        row.tags = {**row.tags, "mlflow.log-model.history": text}


def bounded_inputs(value: Any, what: str) -> Any:
    """``value``. Raises ``InvalidRequest`` if it exceeds a run's limit."""
    if len(orjson.dumps(value)) > _BYTES_OF_RUN:
        raise InvalidRequest(f"The {what} of a run take at most {_BYTES_OF_RUN // 2**10} KiB.", field=what)
    return value


def parse_status(status: str | int) -> str:
    """The status by its name or number. Raises ``InvalidRequest``."""
    name = STATUSES[status] if isinstance(status, int) and 0 <= status < len(STATUSES) else status
    if name not in STATUSES[1:]:
        raise InvalidRequest(f"status {status!r} is none of {', '.join(STATUSES[1:])}.", field="status")
    return str(name)


def _bounded(pairs: dict[str, str], what: str) -> dict[str, str]:
    size = sum(len(key) + len(value) for key, value in pairs.items())
    if len(pairs) > _PAIRS_OF_RUN or size > _BYTES_OF_RUN:
        raise InvalidRequest(
            f"A run has at most {_PAIRS_OF_RUN} {what} of {_BYTES_OF_RUN // 2**10} KiB together; log larger things "
            "as artifacts.",
            field=what,
        )
    return pairs


def _possible_attempt_ids(run_id: str) -> list[str]:
    """Candidate attempt ids: a run id is an attempt's id, alone or followed by a replica's name."""
    parts = run_id.split("-")
    return ["-".join(parts[:end]) for end in range(2, min(len(parts), _WORDS) + 1)]


def _replica(run_id: str, attempt_id: str, roles: Mapping[str, int]) -> str | None:
    name = replica_of_run(run_id, attempt_id, tuple(roles))
    if name is None:
        return None
    role, _, index = name.rpartition("-")
    # The main replica's run is the attempt's own.
    is_twice = run_id != attempt_id and (role, index) == (main_role(tuple(roles)), "0")
    return name if int(index) < roles[role] and not is_twice else None


def _status(attempt: Attempt) -> str:
    if attempt.state != AttemptState.ENDED:
        return "RUNNING" if attempt.state == AttemptState.RUNNING else "SCHEDULED"
    match (attempt.end or {}).get("kind"):
        case ExitKind.SUCCESS:
            return "FINISHED"
        case ExitKind.CANCELLED:
            return "KILLED"
        case _:
            return "FAILED"


def run_view(run: RunFacts, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """``metrics``: the last value of each, by name."""
    inputs: Mapping[str, Any] = run.row.inputs if run.row is not None else {}
    return {
        "info": run_info(run),
        "data": {
            "metrics": [metrics[name] for name in sorted(metrics)],
            "params": pairs(run.params),
            "tags": pairs(run.tags),
        },
        "inputs": {"dataset_inputs": inputs.get("datasets", []), "model_inputs": inputs.get("models", [])},
        "outputs": {"model_outputs": run.row.outputs if run.row is not None else []},
    }


def run_info(run: RunFacts) -> dict[str, Any]:
    info = {
        "run_id": run.id,
        "run_uuid": run.id,
        "run_name": run.name,
        "experiment_id": run.project_id,
        "user_id": run.user,
        "status": run.status,
        "start_time": milliseconds(run.started_at),
        "artifact_uri": artifact_uri("runs", run.id),
        "lifecycle_stage": "deleted" if run.row is not None and run.row.is_deleted else "active",
    }
    return info if run.ended_at is None else {**info, "end_time": milliseconds(run.ended_at)}


def experiment_view(project: Project, name: str | None = None) -> dict[str, Any]:
    """A project as an experiment. ``name``: as the script calls it."""
    return {
        "experiment_id": project.id,
        "name": name or project.name,
        "artifact_location": artifact_uri("experiments", project.id),
        "lifecycle_stage": "active",
        "creation_time": milliseconds(project.created_at),
        "last_update_time": milliseconds(project.created_at),
        "tags": [],
    }


def artifact_uri(kind: str, thing_id: str) -> str:
    """Files go through this server: the client prepends its tracking address."""
    return f"mlflow-artifacts:/{kind}/{thing_id}"


def pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in sorted(values.items())]
