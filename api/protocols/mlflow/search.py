"""Searching runs and experiments.

The database filters by start times, ids and equal parameters. Other terms are evaluated here on the newest remaining
runs, up to a limit: tags may be the platform's own, and metrics are in the metrics store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import orjson
from sqlalchemy import case, exists, func, select
from sqlalchemy.orm import Session

from api.protocols.kit.json_values import from_milliseconds, milliseconds
from api.protocols.kit.paging import page_token, token_offset
from api.protocols.kit.script_access import ReadScope
from api.protocols.mlflow.filters import (
    Comparison,
    OrderTerm,
    ValueReader,
    in_order,
    matching,
    parse_filter,
    parse_order,
)
from api.protocols.mlflow.metrics import last_values
from api.protocols.mlflow.runs import RunFacts, artifact_uri, experiment_view, facts_of, run_query, run_view
from api.protocols.mlflow.schemas import SearchModels, SearchPage, SearchRuns
from core.db.tables import Attempt, Job, MlflowRun, Project
from core.domain.errors import InvalidRequest
from core.domain.metrics import TIME_LIMIT_MS

SCANNED: Final = 5_000  # runs that one search evaluates
_SCANNED_BYTES: Final = 64 * 2**20  # of logged data; a typical run has 2 KB
_RUN_KEYS: Final = frozenset(
    {"run_id", "run_name", "user_id", "status", "start_time", "end_time", "artifact_uri", "experiment_id"}
)
_EXPERIMENT_KEYS: Final = frozenset({"experiment_id", "name", "creation_time", "last_update_time"})
_ATTEMPT_BEGAN: Final = func.coalesce(Attempt.started_at, Attempt.created_at)
_PLAIN_KEY: Final = re.compile(r"^[\w./ -]{1,250}$", re.ASCII)  # keys that have no special meaning in a JSON path
_VIEWS: Final = ("", "ACTIVE_ONLY", "DELETED_ONLY", "ALL")


def search_runs(session: Session, scope: ReadScope, sent: SearchRuns) -> dict[str, Any]:
    """A page of runs, by default the newest first. Invisible experiments have no runs."""
    filters, orders = parse_filter(sent.filter, _RUN_KEYS), parse_order(sent.order_by, _RUN_KEYS)
    candidates = _runs(session, scope, sent.experiment_ids, filters)
    runs = [run for run in candidates if _is_in_view(run, sent.run_view_type)]
    runs.sort(key=lambda run: (run.started_at, run.id), reverse=True)
    # Terms without metrics first: loading metrics is expensive.
    runs = [run for run in runs if _holds(filters, _reader_of(run, {}), is_metrics=False)]
    metrics: dict[str, dict[str, Any]] = {}
    items: list[Comparison | OrderTerm] = [*filters, *orders]
    metric_keys = [item.key for item in items if item.kind == "metrics"]
    if metric_keys:
        metrics = last_values(session, runs, metric_keys)
        runs = [run for run in runs if _holds(filters, _reader_of(run, metrics[run.id]), is_metrics=True)]
    runs = in_order(runs, orders, lambda run: _reader_of(run, metrics.get(run.id, {})))
    page = page_of("runs", runs, sent)
    shown = last_values(session, page["runs"])
    return {**page, "runs": [run_view(run, shown[run.id]) for run in page["runs"]]}


def search_experiments(session: Session, scope: ReadScope, sent: SearchPage) -> dict[str, Any]:
    filters, orders = parse_filter(sent.filter, _EXPERIMENT_KEYS), parse_order(sent.order_by, _EXPERIMENT_KEYS)
    query = select(Project).where(Project.id.in_(list(scope.projects)), Project.deleted_at.is_(None))
    projects = session.execute(query.order_by(Project.created_at.desc(), Project.id)).scalars().all()
    experiments = matching((experiment_view(project) for project in projects), filters, _attribute_reader)
    return page_of("experiments", in_order(experiments, orders, _attribute_reader), sent)


def page_of(key: str, items: Sequence[Any], sent: SearchRuns | SearchPage | SearchModels) -> dict[str, Any]:
    """The requested page of ``items``, as the field ``key`` of a response. Raises ``InvalidRequest``."""
    start = token_offset(sent.page_token)
    end = start + sent.max_results
    return {key: items[start:end], **next_page(end if end < len(items) else None)}


def next_page(offset: int | None) -> dict[str, str]:
    """The field of the next page's token; none on the last page."""
    return {} if offset is None else {"next_page_token": page_token(offset)}


def _attribute_reader(view: dict[str, Any]) -> ValueReader:
    """Reads attributes of items without metrics and parameters."""
    return lambda kind, key: view.get(key) if kind == "attributes" else None


def _runs(
    session: Session, scope: ReadScope, experiment_ids: Sequence[str], filters: Sequence[Comparison]
) -> list[RunFacts]:
    projects = [project for project in experiment_ids if project in scope.projects]
    if not projects:
        return []
    conditions = [
        Job.project_id.in_(projects),
        *([Job.id == scope.attempt.job_id] if scope.attempt is not None else []),
    ]
    attempts = session.execute(
        run_query()
        .where(*conditions, *_of_attempts(filters))
        .order_by(Attempt.created_at.desc(), Attempt.id.desc())
        .limit(SCANNED)
    ).all()
    rows = session.execute(
        run_query()
        .add_columns(MlflowRun)
        .join(MlflowRun, MlflowRun.attempt_id == Attempt.id)
        .where(*conditions, *_of_rows(filters))
        .order_by(MlflowRun.started_at.desc(), MlflowRun.id.desc())
        .limit(SCANNED),
        execution_options={"yield_per": 100},
    )
    logged, size_bytes = {}, 0
    for row in rows:
        logged[row[3].id] = row
        size_bytes += len(orjson.dumps([row[3].params, row[3].tags, row[3].inputs, row[3].outputs]))
        if size_bytes > _SCANNED_BYTES:
            break
    rows.close()
    runs = [facts_of(row[:3], row[0].id, _row(logged, row[0].id)) for row in attempts]
    main = {row[0].id for row in attempts}
    runs += [facts_of(row[:3], run_id, row[3]) for run_id, row in logged.items() if run_id not in main]
    return [run for run in runs if run is not None]


def _of_attempts(filters: Sequence[Comparison]) -> Iterator[Any]:
    """Necessary conditions on attempts whose run matches the filters."""
    for item in filters:
        if item.kind == "params":
            condition = _parameter(item)
            if condition is not None:
                yield exists().where(MlflowRun.id == Attempt.id, condition)
        elif item.kind == "attributes" and item.key == "run_id" and item.sign in ("=", "IN"):
            yield Attempt.id.in_(_values(item))
        elif item.kind == "attributes" and item.key == "start_time":
            yield from _times(_ATTEMPT_BEGAN, item)


def _of_rows(filters: Sequence[Comparison]) -> Iterator[Any]:
    """The same for run rows. Scripts' runs have start times of their own, all others their attempt's."""
    for item in filters:
        if item.kind == "params":
            condition = _parameter(item)
            if condition is not None:
                yield condition
        elif item.kind == "attributes" and item.key == "run_id" and item.sign in ("=", "IN"):
            yield MlflowRun.id.in_(_values(item))
        elif item.kind == "attributes" and item.key == "start_time":
            yield from _times(case((MlflowRun.replica == "", MlflowRun.started_at), else_=_ATTEMPT_BEGAN), item)


def _values(item: Comparison) -> Sequence[str]:
    return [item.value] if item.sign == "=" else item.value


def _parameter(item: Comparison) -> Any:
    if item.sign != "=" or not _PLAIN_KEY.match(item.key):
        return None
    return MlflowRun.params[item.key].as_string() == item.value


def _times(column: Any, item: Comparison) -> Iterator[Any]:
    """The column has microseconds; MLflow compares whole milliseconds, which ``milliseconds`` may round down by one."""
    value = item.value
    if not 0 <= value < TIME_LIMIT_MS or value != int(value):
        return  # outside the database's range, or fractional: evaluated only in Python
    at, next_at = from_milliseconds(int(value)), from_milliseconds(int(value) + 1)
    if item.sign in (">=", "="):
        yield column >= at
    if item.sign in ("<=", "="):
        yield column <= next_at
    if item.sign == ">":
        yield column >= next_at
    if item.sign == "<":
        yield column <= at


def _row(logged: dict[str, Any], run_id: str) -> MlflowRun | None:
    row = logged.get(run_id)
    return None if row is None else row[3]


def _is_in_view(run: RunFacts, view: str | int) -> bool:
    name = _VIEWS[view] if isinstance(view, int) and 0 < view < len(_VIEWS) else view
    if name not in _VIEWS[1:]:
        raise InvalidRequest(f"run_view_type is none of {', '.join(_VIEWS[1:])}.", field="run_view_type")
    is_deleted = run.row is not None and run.row.is_deleted
    return name == "ALL" or is_deleted == (name == "DELETED_ONLY")


def _holds(filters: Sequence[Comparison], read: ValueReader, *, is_metrics: bool) -> bool:
    return all(item.holds(read) for item in filters if (item.kind == "metrics") == is_metrics)


def _reader_of(run: RunFacts, metrics: dict[str, Any]) -> ValueReader:
    attributes: dict[str, Callable[[], Any]] = {
        "run_id": lambda: run.id,
        "run_name": lambda: run.name,
        "user_id": lambda: run.user,
        "status": lambda: run.status,
        "start_time": lambda: milliseconds(run.started_at),
        "end_time": lambda: None if run.ended_at is None else milliseconds(run.ended_at),
        "artifact_uri": lambda: artifact_uri("runs", run.id),
        "experiment_id": lambda: run.project_id,
    }

    def read(kind: str, key: str) -> Any:
        match kind:
            case "metrics":
                metric = metrics.get(key)
                return None if metric is None else float(metric["value"])
            case "params":
                return run.params.get(key)
            case "tags":
                return run.tags.get(key)
            case "datasets":
                return _of_datasets(run, key)
            case _:
                return attributes[key]()

    return read


def _of_datasets(run: RunFacts, key: str) -> list[Any] | None:
    datasets = run.row.inputs.get("datasets", []) if run.row is not None else []
    if key == "context":
        return [
            tag["value"]
            for dataset_input in datasets
            for tag in dataset_input["tags"]
            if tag["key"] == "mlflow.data.context"
        ] or None
    return [dataset_input["dataset"].get(key) for dataset_input in datasets] or None
