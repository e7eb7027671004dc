"""``projects.locations.trainingPipelines``, of custom training alone: ``CustomTrainingJob``,
``CustomContainerTrainingJob``.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.trainingPipelines
"""

from __future__ import annotations

from typing import Any, Final

from api.app.unit_of_work import UnitOfWork
from api.protocols.kit.errors import NotServed
from api.protocols.vertex.long_running import FAILED_PRECONDITION, error_status
from api.protocols.vertex.names import VertexCall
from api.protocols.vertex.proto import Message
from api.protocols.vertex.serving import models
from api.protocols.vertex.training import custom_jobs, jobs, tracking
from api.protocols.vertex.training.mapping import JobOrder
from api.protocols.vertex.training.specs import in_camel_case, read_spec
from core.domain.jobs.states import JobState
from core.domain.model_versions import VersionState

COLLECTION: Final = "trainingPipelines"
_CUSTOM_TASK: Final = "schema/trainingjob/definition/custom_task_1.0.0.yaml"


def create(call: VertexCall, raw: Any) -> str:
    """The id of a new pipeline, and of the job behind it. Raises as ``custom_jobs.create``."""
    call.demand_member("member", verb="trainingPipelines.create")
    message = Message(raw, "training_pipeline")
    served = {
        "displayName",
        "labels",
        "trainingTaskDefinition",
        "trainingTaskInputs",
        "modelToUpload",
        "modelId",
        "parentModel",
        "trainingTaskMetadata",
        *custom_jobs.JOB_OUTPUT,
    }
    message.refuse_unknown_fields(served, absent={"inputDataConfig": "managed datasets are"})
    common = jobs.read_common(message)
    definition = message.text("trainingTaskDefinition", 1_000)
    if not definition.endswith(_CUSTOM_TASK):
        raise NotServed(
            f"{message.at('trainingTaskDefinition')}: {definition[:200]} is not served by this platform; custom "
            f"training is (gs://google-cloud-aiplatform/{_CUSTOM_TASK})."
        )
    upload = None
    if (model_message := message.message("modelToUpload")) is not None:
        parent_model = message.text("parentModel", 1_000)
        upload = models.read_upload(model_message, model_id=message.text("modelId", 63), parent=parent_model)
    inputs = message.raw("trainingTaskInputs")
    spec = read_spec(inputs or {}, message.at("trainingTaskInputs"))

    def begin(work: UnitOfWork, job_id: str) -> None:
        tracking.begin(work, call.parent, spec, job_id)
        if upload is not None:
            models.register(call.context, work, call.caller, upload, job_id)

    order = JobOrder(spec, common.display_name, common.labels)
    return jobs.create(
        call,
        order,
        {
            COLLECTION: {"trainingTaskDefinition": definition, "trainingTaskInputs": inputs},
            custom_jobs.COLLECTION: {"jobSpec": in_camel_case(inputs)},
        },
        also=begin,
    )


def view(resource: jobs.JobResource) -> dict[str, Any]:
    backing = resource.parent.name_of(custom_jobs.COLLECTION, resource.job.id)
    return {
        **jobs.status_of(resource, "PIPELINE_STATE_"),
        **resource.row.body,
        "trainingTaskMetadata": {"backingCustomJob": backing},
        **_model_of(resource),
    }


def _model_of(resource: jobs.JobResource) -> dict[str, Any]:
    """Fields of the model to upload, if any: the pipeline runs until it is registered, and fails if that fails."""
    version = models.of_pipeline(resource)
    if version is None:
        return {}
    registered = version.registration[models.KEY]
    if JobState(resource.job.state) is not JobState.SUCCEEDED:
        return {"modelToUpload": registered}
    match version.state:
        case VersionState.READY:
            name = resource.parent.name_of(models.COLLECTION, version.model_id)
            return {"modelToUpload": {**registered, "name": name, "versionId": str(version.number)}}
        case VersionState.FAILED:
            error = error_status(FAILED_PRECONDITION, f"The model was not registered: {version.reason}")
            return {"modelToUpload": registered, "state": "PIPELINE_STATE_FAILED", "error": error}
        case VersionState.DELETING:
            return {"modelToUpload": registered}
        case _:
            return {"modelToUpload": registered, "state": "PIPELINE_STATE_RUNNING"}
