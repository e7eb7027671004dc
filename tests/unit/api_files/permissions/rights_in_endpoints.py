"""Routes of endpoints and predictions in the table of who may do what."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from core.db.tables import Deployment, DeploymentRevision, Endpoint
from tests.unit.api_files.permissions.rights import ANY_READER, MEMBER, PEOPLE, VIEWER, Case, case

_ENDPOINT = "* /api/v1/projects/{project}/endpoints/{endpoint}"

ENDPOINTS: dict[str, Case] = {
    "GET /api/v1/endpoints": case(ANY_READER),
    "POST /api/v1/projects/{project}/endpoints": case(MEMBER, json={"name": "fresh"}),
    _ENDPOINT.replace("*", "GET"): case(VIEWER),
    f"{_ENDPOINT.replace('*', 'GET')}/history": case(VIEWER),
    _ENDPOINT.replace("*", "DELETE"): case(MEMBER),
    f"{_ENDPOINT.replace('*', 'POST')}/deployments": case(
        MEMBER, json={"deployment": "more", "model": "output/vision/job-1"}
    ),
    f"{_ENDPOINT.replace('*', 'POST')}/deployments/{{deployment}}/scale": case(MEMBER, json={"replicas": 2}),
    f"{_ENDPOINT.replace('*', 'POST')}/deployments/{{deployment}}/rollback": case(MEMBER, json={"revision": 1}),
    f"{_ENDPOINT.replace('*', 'DELETE')}/deployments/{{deployment}}": case(MEMBER),
    f"{_ENDPOINT.replace('*', 'PUT')}/traffic": case(MEMBER, json={"traffic": {"default": 100}}),
    # Nothing of it is ready, which those are told that may ask.
    **{
        f"{_ENDPOINT.replace('*', 'POST')}:{verb}": case(
            {**dict.fromkeys(PEOPLE, 503), **VIEWER}, json={"instances": []}
        )
        for verb in ("predict", "rawPredict")
    },
    "POST /api/v1/projects/{project}/batch-predictions": case(
        MEMBER, json={"model": "digits@1", "input": "output/vision/job-1"}
    ),
}


def furnish_endpoints(session: Session, now: datetime) -> None:
    """One with a deployed model of two revisions, of which nothing runs."""
    session.add(
        Endpoint(
            id="endpoint-1", project_id="project-vision", user_id="user-member", name="sums", created_at=now,
            updated_at=now,
        )
    )  # fmt: skip
    session.flush()
    session.add(
        Deployment(
            id="deployment-1", endpoint_id="endpoint-1", name="default", state="active", replicas=1, traffic=100,
            target_revision=2, stable_revision=1, created_at=now, updated_at=now,
        )
    )  # fmt: skip
    session.flush()
    for number in (1, 2):
        session.add(
            DeploymentRevision(
                deployment_id="deployment-1", number=number, spec={"model": "output/vision/job-1"},
                user_id="user-member", created_at=now,
            )
        )  # fmt: skip
