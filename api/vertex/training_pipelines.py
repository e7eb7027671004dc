"""``projects.locations.trainingPipelines``, of custom training alone: ``CustomTrainingJob``, ``CustomContainerTrainingJob``.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.trainingPipelines
"""

from __future__ import annotations

from typing import Any, Final

from api.auth import Caller
from api.vertex import custom_jobs, jobs
from api.vertex.answers import NotServed
from api.vertex.mapping import Order
from api.vertex.models import ModelRegistry, NoRegistry
from api.vertex.names import Parent
from api.vertex.proto import Message
from api.vertex.specs import in_camel_case, read_spec
from api.work import Platform

COLLECTION: Final = "trainingPipelines"
REGISTRY: ModelRegistry = NoRegistry()
_CUSTOM_TASK: Final = "schema/trainingjob/definition/custom_task_1.0.0.yaml"
_OUTPUT_ONLY: Final = frozenset({*custom_jobs.OUTPUT_ONLY, "trainingTaskMetadata"})
_NO_PIPELINE: Final = {
    "inputDataConfig": "managed datasets are",
    "encryptionSpec": "encryption by keys of one's own is",
    "modelId": "models are",
    "parentModel": "models are",
}


def create(platform: Platform, caller: Caller, parent: Parent, raw: Any) -> str:
    """The id of a new pipeline, and of the job behind it. Raises as ``custom_jobs.create``."""
    jobs.demand_member(platform, caller, parent, "member", verb="trainingPipelines.create")
    message = Message(raw, "training_pipeline")
    served = {"displayName", "labels", "trainingTaskDefinition", "trainingTaskInputs", "modelToUpload", *_OUTPUT_ONLY}
    message.demand_known(served, absent=_NO_PIPELINE)
    told = jobs.read_told(message)
    definition = message.text("trainingTaskDefinition", 1_000)
    if not definition.endswith(_CUSTOM_TASK):
        raise NotServed(
            f"{message.at('trainingTaskDefinition')}: {definition[:200]} is not served by this platform; custom training is "
            f"(gs://google-cloud-aiplatform/{_CUSTOM_TASK})."
        )
    if (upload := message.message("modelToUpload")) is not None:
        REGISTRY.accept(upload)
    inputs = message.raw("trainingTaskInputs")
    spec = read_spec(inputs or {}, message.at("trainingTaskInputs"))
    order = Order(spec, told.display_name, parent.own, parent.location, told.labels)
    return jobs.create(
        platform,
        caller,
        parent,
        order,
        {
            COLLECTION: {"trainingTaskDefinition": definition, "trainingTaskInputs": inputs},
            custom_jobs.COLLECTION: {"jobSpec": in_camel_case(inputs)},
        },
    )


def view(found: jobs.Found) -> dict[str, Any]:
    backing = found.parent.name_of(custom_jobs.COLLECTION, found.job.id)
    return {
        **jobs.status_of(found, "PIPELINE_STATE_"),
        **found.row.body,
        "trainingTaskMetadata": {"backingCustomJob": backing},
    }
