from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from trainmaster.wire.automl import AutomlCreate, AutomlDetail

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Writer
from api.automl import service
from api.automl.views import automl_detail, plan_view
from api.http.routing import new_router
from api.jobs.routes import REPLAYED, IdempotencyKey
from api.jobs.service import digest_of
from api.studies.access import StudyViewer
from api.studies.service import StudyCreated, create, created_before

router = new_router("automl", "/automl")

_LINES = 100


@router.post(
    "",
    operation_id="create_automl",
    summary="Find the best model for a table or a folder of images",
    status_code=201,
    response_model=AutomlDetail,
    responses={200: {"model": AutomlDetail, "description": "With `dry_run`: the plan; nothing was created."}},
)
def create_automl(body: AutomlCreate, caller: Writer, context: AppContextDep, key: IdempotencyKey = None) -> Response:
    """Profile the data, then create a study that runs by itself. At its end the best model is tested on data that no
    trial used, and registered. Needs the role `member` in the project.
    """
    digest = digest_of("automl", body.model_dump(mode="json", exclude={"wait_for_nodes"}))
    if not body.dry_run:
        with context.read() as work:
            before = created_before(work, caller, key, digest)
            if before is not None:
                return _created(work, before)
    plan = service.plan(context, caller, body)
    if body.dry_run:
        return Response(plan_view(plan.spec).model_dump_json(), 200, media_type="application/json")
    with context.write() as work:
        made = create(work, caller, plan.draft, f"AutoML on {body.data}", key=key, digest=digest)
        return _created(work, made)


@router.get("/{study}", operation_id="get_automl", summary="An AutoML study with its leaderboard and the final test")
def get_automl(
    study: StudyViewer,
    context: AppContextDep,
    limit: Annotated[int, Query(ge=1, le=1000, description="Lines of the leaderboard.")] = _LINES,
) -> AutomlDetail:
    """404 also for a study that AutoML did not create."""
    with context.read() as work:
        return automl_detail(work.session, study.load(work.session)[0], limit)


def _created(work: UnitOfWork, made: StudyCreated) -> Response:
    headers = None if made.is_new else {REPLAYED: "true"}
    content = automl_detail(work.session, made.row, _LINES).model_dump_json()
    return Response(content, 201, headers, media_type="application/json")
