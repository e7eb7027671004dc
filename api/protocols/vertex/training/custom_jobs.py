"""``projects.locations.customJobs``:
https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.customJobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.app.unit_of_work import AppContext
from api.protocols.vertex.names import VertexCall
from api.protocols.vertex.proto import OUTPUT_ONLY, Message
from api.protocols.vertex.training import jobs, tracking
from api.protocols.vertex.training.mapping import ROLES, JobOrder
from api.protocols.vertex.training.specs import read_spec
from core.domain.jobs.states import JobState
from core.settings import Settings

COLLECTION: Final = "customJobs"
# Output-only fields; a client may send them back.
JOB_OUTPUT: Final = OUTPUT_ONLY | {"state", "startTime", "endTime", "error", "webAccessUris"}


def create(call: VertexCall, raw: Any) -> str:
    """The id of a new job. Raises ``InvalidRequest``, ``NotServed``, ``NotFound`` or ``Forbidden``."""
    call.demand_member("member", verb="customJobs.create")
    message = Message(raw, "custom_job")
    message.refuse_unknown_fields({"displayName", "labels", "jobSpec", *JOB_OUTPUT})
    common = jobs.read_common(message)
    spec = read_spec(message.raw("jobSpec") or {}, message.at("jobSpec"))
    order = JobOrder(spec, common.display_name, common.labels)
    return jobs.create(
        call,
        order,
        {COLLECTION: {"jobSpec": message.raw("jobSpec")}},
        also=lambda work, job_id: tracking.begin(work, call.parent, spec, job_id),
    )


def view(context: AppContext, resource: jobs.JobResource) -> dict[str, Any]:
    shown = {**jobs.status_of(resource, "JOB_STATE_"), **resource.row.body}
    if JobState(resource.job.state) is JobState.RUNNING and has_web_access(shown.get("jobSpec") or {}):
        shown["webAccessUris"] = web_access_uris(context.settings, resource.job.id, resource.job.spec["roles"])
    return shown


def has_web_access(spec: Mapping[str, Any]) -> bool:
    """Whether the client wants links to our web pages. ``spec``: a CustomJobSpec, in camelCase or snake_case."""
    return bool(spec.get("enableWebAccess") or spec.get("enable_web_access"))


def web_access_uris(settings: Settings, job_id: str, roles: Mapping[str, Any]) -> dict[str, str]:
    """The job's page for each replica of each pool. ``roles``: of the job's spec."""
    page = f"{settings.api_url.rstrip('/')}/jobs/{job_id}"
    return {
        f"workerpool{pool}-{index}": page
        for pool, role in enumerate(ROLES)
        for index in range(int(roles[role]["replicas"]) if role in roles else 0)
    }
