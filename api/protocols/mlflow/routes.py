"""MLflow's tracking API: https://mlflow.org/docs/latest/rest-api.html.

Not part of our OpenAPI document: MLflow defines and versions it. Below ``/mlflow``, where every job's
``MLFLOW_TRACKING_URI`` points to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse

from api.app import audit
from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.protocols.kit.json_values import answer
from api.protocols.kit.paging import token_offset
from api.protocols.kit.script_access import ScriptAttempt
from api.protocols.mlflow import artifacts, models, registry
from api.protocols.mlflow.answers import MlflowRoute, Reader, Script
from api.protocols.mlflow.metrics import HISTORY_LIMIT, history, last_values, log_metrics
from api.protocols.mlflow.models import record_metrics
from api.protocols.mlflow.runs import (
    append_model_history,
    bounded_inputs,
    create_run,
    experiment_view,
    find_run,
    lock_row,
    run_info,
    run_view,
    set_params,
    set_tags,
    update_run,
    writable_run,
)
from api.protocols.mlflow.schemas import (
    CreateExperiment,
    CreateRun,
    DeleteTag,
    LogBatch,
    LogInputs,
    LogMetric,
    LogModel,
    LogOutputs,
    LogParam,
    OfExperiment,
    OfRun,
    SearchPage,
    SearchRuns,
    SetTag,
    UpdateRun,
)
from api.protocols.mlflow.search import next_page, search_experiments, search_runs
from core.db.tables import MlflowRun, Project
from core.domain.errors import Forbidden, NotFound

API: Final = "/mlflow/api/2.0/mlflow"
router = APIRouter(route_class=MlflowRoute, include_in_schema=False)

# Part of an address -> unsupported feature.
_ABSENT: Final = {
    "traces": "traces",
    "registered-models/alias": "aliases of registered models",
    "transition-stage": "stages of model versions",
    "mpu/": "uploads in parts",
}

_RunId = Annotated[str, Query(max_length=256)]


# --- experiments -----------------------------------------------------------------------------------------------------


@router.get(f"{API}/experiments/get-by-name")
def get_experiment_by_name(
    reader: Reader, context: AppContextDep, experiment_name: Annotated[str, Query(max_length=500)]
) -> Response:
    """For a script any name is its own project, which has its run."""
    with context.read() as work:
        scope = reader.scope(work.session)
        if scope.attempt is not None:
            return _experiment(work, scope.attempt.project_id, experiment_name)
        for project_id, name in scope.projects.items():
            if name == experiment_name:
                return _experiment(work, project_id)
    raise NotFound(f"Could not find experiment with name {experiment_name!r}; a project is an experiment.")


@router.get(f"{API}/experiments/get")
def get_experiment(
    reader: Reader, context: AppContextDep, experiment_id: Annotated[str, Query(max_length=256)]
) -> Response:
    with context.read() as work:
        scope = reader.scope(work.session)
        if scope.attempt is not None:  # "0" is MLflow's own default
            return _experiment(work, scope.attempt.project_id)
        if experiment_id in scope.projects:
            return _experiment(work, experiment_id)
    raise NotFound(f"No Experiment with id={experiment_id} exists that you may see.")


@router.post(f"{API}/experiments/create")
def create_experiment(sent: CreateExperiment, script: Script, context: AppContextDep) -> Response:
    """Creates nothing: the job's project is its experiment, whatever the name."""
    del sent
    audit.skip()
    with context.read() as work:
        return answer({"experiment_id": script.load(work.session, work.now).project_id})


@router.post(f"{API}/experiments/search")
def post_search_experiments(sent: SearchPage, reader: Reader, context: AppContextDep) -> Response:
    with context.read() as work:
        return answer(search_experiments(work.session, reader.scope(work.session), sent))


@router.get(f"{API}/experiments/search")
def get_search_experiments(reader: Reader, context: AppContextDep, sent: Annotated[SearchPage, Query()]) -> Response:
    with context.read() as work:
        return answer(search_experiments(work.session, reader.scope(work.session), sent))


@router.post(f"{API}/experiments/set-experiment-tag")
def set_experiment_tag(sent: OfExperiment, script: Script) -> Response:
    del sent, script
    raise Forbidden("An experiment is a project here, which jobs do not change; set tags of runs instead.")


def _experiment(work: UnitOfWork, project_id: str, name: str | None = None) -> Response:
    return answer({"experiment": experiment_view(work.session.get_one(Project, project_id), name)})


# --- runs ------------------------------------------------------------------------------------------------------------


@router.post(f"{API}/runs/create")
def post_run(sent: CreateRun, script: Script, context: AppContextDep) -> Response:
    with context.write() as work:
        run = create_run(work, script.load(work.session, work.now), sent)
        return answer({"run": run_view(run, {})})


@router.get(f"{API}/runs/get")
def get_run(reader: Reader, context: AppContextDep, run_id: _RunId = "", run_uuid: _RunId = "") -> Response:
    with context.read() as work:
        run = find_run(work.session, reader.scope(work.session), run_id or run_uuid)
        return answer({"run": run_view(run, last_values(work.session, [run])[run.id])})


@router.post(f"{API}/runs/update")
def post_update(sent: UpdateRun, script: Script, context: AppContextDep) -> Response:
    with context.write() as work:
        attempt = script.load(work.session, work.now)
        update_run(work, writable_run(work.session, attempt, sent.run), sent)
        work.session.flush()
        return answer({"run_info": run_info(writable_run(work.session, attempt, sent.run))})


@router.post(f"{API}/runs/delete")
def delete_run(sent: OfRun, script: Script, context: AppContextDep) -> Response:
    """Only runs that the script created; an attempt's run is deleted with its job."""
    return _mark(sent, script, context, is_deleted=True)


@router.post(f"{API}/runs/restore")
def restore_run(sent: OfRun, script: Script, context: AppContextDep) -> Response:
    return _mark(sent, script, context, is_deleted=False)


@router.post(f"{API}/runs/search")
def post_search_runs(sent: SearchRuns, reader: Reader, context: AppContextDep) -> Response:
    with context.read() as work:
        return answer(search_runs(work.session, reader.scope(work.session), sent))


# --- logging ---------------------------------------------------------------------------------------------------------


@router.post(f"{API}/runs/log-metric")
async def log_metric(sent: LogMetric, script: Script, context: AppContextDep) -> Response:
    return await context.run_bounded(_log, LogBatch(run_id=sent.run, metrics=[sent]), script, context)


@router.post(f"{API}/runs/log-parameter")
async def log_parameter(sent: LogParam, script: Script, context: AppContextDep) -> Response:
    return await context.run_bounded(_log, LogBatch(run_id=sent.run, params=[sent]), script, context)


@router.post(f"{API}/runs/set-tag")
async def set_tag(sent: SetTag, script: Script, context: AppContextDep) -> Response:
    return await context.run_bounded(_log, LogBatch(run_id=sent.run, tags=[sent]), script, context)


@router.post(f"{API}/runs/log-batch")
async def log_batch(sent: LogBatch, script: Script, context: AppContextDep) -> Response:
    return await context.run_bounded(_log, sent, script, context)


@router.post(f"{API}/runs/delete-tag")
def delete_tag(sent: DeleteTag, script: Script, context: AppContextDep) -> Response:
    with _locked_row(context, script, sent) as row:
        if sent.key not in row.tags:
            raise NotFound(f"No tag with name: {sent.key} in run with id {sent.run}.")
        row.tags = {key: value for key, value in row.tags.items() if key != sent.key}
    return answer({})


@router.post(f"{API}/runs/log-inputs")
def log_inputs(sent: LogInputs, script: Script, context: AppContextDep) -> Response:
    with _locked_row(context, script, sent) as row:
        datasets = [item.model_dump(by_alias=True, exclude_none=True) for item in sent.datasets]
        models = [item.model_dump() for item in sent.models]
        inputs = {name: list(row.inputs.get(name, [])) for name in ("datasets", "models")}
        for name, new in (("datasets", datasets), ("models", models)):
            inputs[name] += [item for item in new if item not in inputs[name]]
        row.inputs = bounded_inputs(inputs, "inputs")
    return answer({})


@router.post(f"{API}/runs/outputs")
def log_outputs(sent: LogOutputs, script: Script, context: AppContextDep) -> Response:
    with _locked_row(context, script, sent) as row:
        models = [item.model_dump() for item in sent.models]
        row.outputs = bounded_inputs([*row.outputs, *(item for item in models if item not in row.outputs)], "outputs")
    return answer({})


@router.post(f"{API}/runs/log-model")
def log_model(sent: LogModel, script: Script, context: AppContextDep) -> Response:
    """Called by clients before MLflow 3 after the upload of a model."""
    with _locked_row(context, script, sent) as row:
        append_model_history(row, sent.model_json)
    return answer({})


@contextmanager
def _locked_row(context: AppContext, script: Script, sent: OfRun) -> Iterator[MlflowRun]:
    """The run's row in a transaction that changes it."""
    with context.write() as work:
        yield lock_row(work, writable_run(work.session, script.load(work.session, work.now), sent.run))


def _log(sent: LogBatch, script: Script, context: AppContext) -> Response:
    with context.write() as work:
        attempt: ScriptAttempt = script.load(work.session, work.now)
        run = writable_run(work.session, attempt, sent.run)
        if sent.params or sent.tags or (run.row is None and not run.is_main):
            row = lock_row(work, run)
            if sent.params:
                set_params(row, sent.params)
            if sent.tags:
                set_tags(row, sent.tags)
        log_metrics(work, run, sent.metrics)
        record_metrics(work, attempt, run, sent.metrics)
    return answer({})


def _mark(sent: OfRun, script: Script, context: AppContext, *, is_deleted: bool) -> Response:
    with context.write() as work:
        run = find_run(work.session, script.load(work.session, work.now).scope, sent.run)
        if not run.is_made_by_script:
            raise Forbidden("This is the run of an attempt, which goes with its job; delete the job instead.")
        lock_row(work, run).is_deleted = is_deleted
    return answer({})


# --- metrics ---------------------------------------------------------------------------------------------------------


@router.get(f"{API}/metrics/get-history")
def get_history(
    reader: Reader,
    context: AppContextDep,
    metric_key: Annotated[str, Query(max_length=250)],
    run_id: _RunId = "",
    run_uuid: _RunId = "",
    max_results: Annotated[int, Query(ge=1)] = HISTORY_LIMIT,
    page_token: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    """Points of a metric, at most 25,000 per page."""
    with context.read() as work:
        run = find_run(work.session, reader.scope(work.session), run_id or run_uuid)
        rows, rest = history(
            work.session, run, metric_key, start=token_offset(page_token), limit=min(max_results, HISTORY_LIMIT)
        )
    return answer({"metrics": rows, **next_page(rest)})


@router.get(f"{API}/metrics/get-history-bulk")
@router.get("/mlflow/ajax-api/2.0/mlflow/metrics/get-history-bulk")
def get_history_bulk(
    reader: Reader,
    context: AppContextDep,
    run_id: Annotated[list[str], Query(max_length=100)],
    metric_key: Annotated[str, Query(max_length=250)],
    max_results: Annotated[int, Query(ge=1)] = HISTORY_LIMIT,
) -> Response:
    """One metric of up to 100 runs."""
    limit = min(max_results, HISTORY_LIMIT)
    points: list[dict[str, Any]] = []
    with context.read() as work:
        scope = reader.scope(work.session)
        for searched_id in run_id:
            if len(points) < limit:
                run = find_run(work.session, scope, searched_id)
                points += history(work.session, run, metric_key, start=0, limit=limit - len(points))[0]
    return answer({"metrics": points})


# Before the catch-all route; in one flat list of routes, as in our other routers.
for _part in (models, registry, artifacts):
    router.routes.extend(_part.router.routes)


@router.get("/mlflow/")
def home() -> Response:
    """Target of the links that clients print; their fragment (``#…``) never reaches the server."""
    return RedirectResponse("/", 303)


@router.api_route("/mlflow/{rest:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
def nothing_here(rest: str) -> Response:
    """Unsupported features: clients check the error code, and show the message."""
    what = next((words for part, words in _ABSENT.items() if part in rest), f"thing at /{rest}")
    return MlflowRoute.error_response(
        404, "ENDPOINT_NOT_FOUND", f"This server keeps no {what}; it serves MLflow's tracking and registers models."
    )
