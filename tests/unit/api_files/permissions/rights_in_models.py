"""Routes of the registry of models in the table of who may do what."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from core.db.tables import Model, ModelAlias, ModelFile, ModelVersion
from tests.unit.api_files.permissions.rights import ANY_READER, MEMBER, VIEWER, Case, case

MODELS: dict[str, Case] = {
    "GET /api/v1/models": case(ANY_READER),
    "POST /api/v1/projects/{project}/models": case(MEMBER, json={"name": "fresh"}),
    "GET /api/v1/projects/{project}/models": case(VIEWER),
    "GET /api/v1/projects/{project}/models/{model}": case(VIEWER),
    "PATCH /api/v1/projects/{project}/models/{model}": case(MEMBER, json={"description": "x"}),
    "DELETE /api/v1/projects/{project}/models/{model}": case(MEMBER),
    "GET /api/v1/projects/{project}/models/{model}/history": case(VIEWER),
    "PUT /api/v1/projects/{project}/models/{model}/aliases/{alias}": case(MEMBER, json={"version": 1}),
    "DELETE /api/v1/projects/{project}/models/{model}/aliases/{alias}": case(
        MEMBER, "/api/v1/projects/vision/models/named/aliases/prod"
    ),
    "POST /api/v1/projects/{project}/models/{model}/versions": case(
        MEMBER, json={"job": "job-done", "path": "model.bin"}
    ),
    "GET /api/v1/projects/{project}/models/{model}/versions": case(VIEWER),
    "GET /api/v1/projects/{project}/models/{model}/versions/{version}": case(VIEWER),
    "PATCH /api/v1/projects/{project}/models/{model}/versions/{version}": case(MEMBER, json={"description": "x"}),
    "POST /api/v1/projects/{project}/models/{model}/versions/{version}/stage": case(MEMBER, json={"stage": "staging"}),
    "DELETE /api/v1/projects/{project}/models/{model}/versions/{version}": case(MEMBER),
    "GET /api/v1/projects/{project}/models/{model}/versions/{version}/files": case(VIEWER),
    **{
        f"{method} /api/v1/projects/{{project}}/models/{{model}}/versions/{{version}}/{what}": case(
            VIEWER, params={"path": "a.txt"} if what == "files/content" else None
        )
        for method in ("GET", "HEAD")
        for what in ("files/content", "archive")
    },
}


def furnish_models(session: Session, now: datetime) -> None:
    """A version whose file is there, and a model with an alias."""
    for name in ("digits", "named"):
        session.add(
            Model(
                id=f"model-{name}",
                project_id="project-vision",
                user_id="user-member",
                name=name,
                version_count=1,
                created_at=now,
                updated_at=now,
            )
        )
        session.flush()
        session.add(
            ModelVersion(
                id=f"version-{name}",
                model_id=f"model-{name}",
                project_id="project-vision",
                user_id="user-member",
                number=1,
                state="ready",
                job_id="job-done",
                source={"kind": "output", "job": "job-done", "path": "model"},
                lineage={"job": "job-done", "job_name": "digits"},
                volume="output",
                path=".models/vision/version-1",
                digest="sha256:0",
                size_bytes=1,
                file_count=1,
                created_at=now,
                updated_at=now,
            )
        )
    session.flush()
    session.add(
        ModelFile(version_id="version-digits", path="a.txt", source="a.txt", size_bytes=1, mtime_ns=0, sha256="0" * 64)
    )
    session.add(
        ModelFile(
            version_id="version-digits",
            path="model.skops",
            source="model.skops",
            size_bytes=0,
            mtime_ns=0,
            sha256="0" * 64,
        )
    )
    session.add(
        Model(
            id="model-gone",
            project_id="project-vision",
            user_id="user-member",
            name="gone",
            created_at=now,
            updated_at=now,
            deleted_at=now,
        )
    )
    session.add(ModelAlias(model_id="model-named", name="prod", version_id="version-named", updated_at=now))
