"""A job's experiment, run and TensorBoard: environment variables, and records that are created for the job.

https://cloud.google.com/vertex-ai/docs/experiments/tensorboard-training
"""

from __future__ import annotations

import re
from typing import Final

from api.app.unit_of_work import UnitOfWork
from api.protocols.kit.vertex_table import Table
from api.protocols.vertex.metadata import runs as metadata
from api.protocols.vertex.metadata.runs import EXPERIMENT, RUN
from api.protocols.vertex.names import Parent, VertexCall
from api.protocols.vertex.records import service
from api.protocols.vertex.records.kinds import check_id
from api.protocols.vertex.records.principals import RecordTransaction
from api.protocols.vertex.tensorboards import points as tensorboards
from api.protocols.vertex.training.specs import CustomJobSpec
from core.db.repositories.vertex_records import RecordScope, find_record, link
from core.db.tables import Job, VertexRecord, VertexResource
from core.domain.errors import InvalidRequest, NotFound

_NAME: Final = re.compile(r"projects/(?P<project>[^/]+)/locations/(?P<location>[^/]+)/(?P<path>.+)")
_CONTEXT: Final = re.compile(r"metadataStores/[^/]+/contexts/[^/]+")
_BOARD: Final = re.compile(r"tensorboards/[^/]+")
# With this variable the job's Python connects Google's SDK to this platform.
_HERE: Final = {"VERTEX_AI_SDK_SERVER": "trainmaster"}


def environment(call: VertexCall, spec: CustomJobSpec, table: Table) -> dict[str, str]:
    """Environment variables of the job's processes. Checks the records that the spec names.

    Raises ``InvalidRequest`` or ``NotFound`` for an unknown experiment, run or TensorBoard.
    """
    references = (
        ("experiment", "AIP_EXPERIMENT_NAME", spec.experiment, _CONTEXT),
        ("experiment_run", "AIP_EXPERIMENT_RUN_NAME", spec.experiment_run, _CONTEXT),
        ("tensorboard", "AIP_TENSORBOARD_RESOURCE_NAME", spec.tensorboard, _BOARD),
    )
    if spec.experiment_run and not spec.experiment:
        raise InvalidRequest("job_spec.experiment_run: needs job_spec.experiment, too.", field="experiment")
    schemas = {"experiment": EXPERIMENT, "experiment_run": RUN, "tensorboard": ""}
    nouns = {"experiment": "an experiment", "experiment_run": "a run of one", "tensorboard": "a TensorBoard"}
    env = dict(_HERE)
    project, location = call.parent.own, call.parent.location
    with call.context.read() as work:
        for field, variable, name, shape in references:
            if not name:
                continue
            match = _NAME.fullmatch(name)
            where = f"job_spec.{field}"
            if match is None or not shape.fullmatch(match["path"]):
                raise InvalidRequest(f"{where}: '{name[:300]}' is not the whole name of {nouns[field]}.", field=where)
            if (table.project(match["project"]), match["location"]) != (project, location):
                raise InvalidRequest(
                    f"{where}: '{name[:300]}' is of another project or location than the job.", field=where
                )
            place = RecordScope(call.caller.member_of(work.session, project).project_id, location)
            record = find_record(work.session, place, match["path"])
            if record is None or record.schema_title != schemas[field]:
                raise NotFound(f"{where}: {name[:300]} is not found, or is not {nouns[field]}.")
            env[variable] = name
            if match["project"] != project:
                env["CLOUD_ML_PROJECT_ID"] = match["project"]  # so that scripts build names with the same project
    return env


def begin(work: UnitOfWork, parent: Parent, spec: CustomJobSpec, job_id: str) -> None:
    """Create the records that the job logs to, named after it: a run of the experiment unless the client gave one, and
    an experiment of the TensorBoard.
    """
    job = work.session.get_one(Job, job_id)
    tx = RecordTransaction(work, parent, RecordScope(job.project_id, parent.location), None)
    own = work.session.get_one(VertexResource, ("customJobs", job_id))
    if spec.experiment and not spec.experiment_run:
        experiment = service.find(tx, metadata.CONTEXT, _path(spec.experiment))
        name = check_id(f"{experiment.name}-{job_id}", "job_spec.experiment")
        path = f"{experiment.collection}/{name}"
        fields = {
            "displayName": job_id,
            "schemaTitle": RUN,
            "schemaVersion": "0.0.1",
            "metadata": {"_params": {}, "_metrics": {}, "_state": "RUNNING"},
        }
        run = _of_job(service.add(tx, metadata.CONTEXT, path, fields), job_id)
        link(work.session, experiment, run, "child", work.now)
        job_spec = {**own.body["jobSpec"], "experimentRun": tx.name_of(path)}
        own.body = {**own.body, "jobSpec": job_spec}
    if spec.tensorboard:
        path = f"{_path(spec.tensorboard)}/experiments/{job_id}"
        source = parent.name_of("customJobs", job_id)
        fields = {"displayName": own.display_name, "source": source}
        _of_job(service.add(tx, tensorboards.EXPERIMENT, path, fields), job_id)
    work.session.flush()


def _path(name: str) -> str:
    return name.split("/", 4)[4]


def _of_job(record: VertexRecord, job_id: str) -> VertexRecord:
    record.job_id = job_id
    return record
