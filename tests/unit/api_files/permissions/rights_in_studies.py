"""Routes of studies and AutoML in the table of who may do what."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session
from trainmaster.studies import parse_study

from core.db.tables import Study, Trial
from tests.unit.api_files.permissions.rights import ANY_READER, MEMBER, OK, VIEWER, Case, case

STUDY = {
    "name": "search", "project": "vision", "parameters": {"x": {"type": "float", "min": 0, "max": 1}}, "metric": "loss",
    "goal": "minimize", "budget": {"trials": 5, "parallel": 3},
}  # fmt: skip

STUDIES: dict[str, Case] = {
    # What changes something is tested with Optuna's client.
    "POST /api/v1/optuna/{method}": case({**VIEWER, "attempt": OK}, "/api/v1/optuna/GetAllStudies?project=vision"),
    "POST /api/v1/automl": case(
        {**MEMBER, "stranger": 404, "plain": 404},
        json={
            "data": "output/vision/job-1/table.csv",
            "target": "y",
            "project": "vision",
            "budget": "1h",
            "dry_run": True,
        },
    ),
    "GET /api/v1/automl/{study}": case(
        {**VIEWER, **dict.fromkeys(("reader", "viewer", "member", "owner", "root"), 404)}
    ),
    "POST /api/v1/studies": case({**MEMBER, "stranger": 404, "plain": 404}, json={"spec": STUDY}),
    "GET /api/v1/studies": case(ANY_READER),
    "GET /api/v1/studies/{study}": case(VIEWER),
    "DELETE /api/v1/studies/{study}": case(MEMBER, "/api/v1/studies/study-done"),
    "GET /api/v1/studies/{study}/best": case(VIEWER),
    "GET /api/v1/studies/{study}/trials": case(VIEWER),
    "GET /api/v1/studies/{study}/columns": case(VIEWER),
    "GET /api/v1/studies/{study}/curves": case(VIEWER),
    "GET /api/v1/studies/{study}/importance": case(VIEWER),
    "GET /api/v1/studies/{study}/prediction": case(VIEWER),
    "POST /api/v1/studies/{study}/clone": case({**MEMBER, "stranger": 404, "plain": 404}, json={}),
    "POST /api/v1/studies/{study}/stop": case(MEMBER),
    "POST /api/v1/studies/{study}/pause": case(MEMBER),
    "POST /api/v1/studies/{study}/resume": case(MEMBER, "/api/v1/studies/study-paused/resume"),
    "POST /api/v1/studies/{study}/extend": case(MEMBER, json={"trials": 3}),
    "POST /api/v1/studies/{study}/suggestions": case(MEMBER),
    "POST /api/v1/studies/{study}/trials/{number}/heartbeat": case(MEMBER),
    "POST /api/v1/studies/{study}/trials/{number}/complete": case(MEMBER, json={"result": {"loss": 0.5}}),
}


def furnish_studies(session: Session, now: datetime) -> None:
    """Without a template, with a point that is ready and one that is being tried."""
    ready = {"parameters": {"x": 0.5}, "memo": {}}
    spec = parse_study(STUDY).model_dump(mode="json")
    for name, state in (("1", "running"), ("paused", "paused"), ("done", "succeeded")):
        session.add(
            Study(
                id=f"study-{name}", project_id="project-vision", user_id="user-member", name=name, spec=spec, seed=1,
                state=state, trial_count=1, prefetched_points=[ready], created_at=now, started_at=now, updated_at=now,
            )
        )  # fmt: skip
    reported = {"location": "us-central1", "displayName": "x", "labels": {}, "body": {}}
    for name, state in (("tuning", "running"), ("tuned", "succeeded"), ("cut", "cancelled")):
        session.add(
            Study(
                id=f"study-{name}", project_id="project-vision", user_id="user-member", name=name,
                spec={**spec, "vertex": reported}, seed=1, state=state, created_at=now, started_at=now, updated_at=now,
                deleted_at=now if name == "cut" else None,
            )
        )  # fmt: skip
    session.flush()
    session.add(Trial(study_id="study-1", number=1, state="running", parameters={"x": 0.1}, created_at=now))
