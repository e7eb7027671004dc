"""Studies and their trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import uuid4

from trainmaster.client.calls.build import params, path, typed, without_content
from trainmaster.client.steps import Call
from trainmaster.studies import StudySpec
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import ReasonRequest
from trainmaster.wire.studies import (
    StudyBest,
    StudyClone,
    StudyCreate,
    StudyCurves,
    StudyDetail,
    StudyExtend,
    StudyImportance,
    StudyPrediction,
    StudyView,
    Suggestions,
    SuggestRequest,
    TrialColumns,
    TrialComplete,
    TrialView,
)


def create_study(
    spec: Mapping[str, Any], *, idempotency_key: str | None = None, wait_for_nodes: bool = False
) -> Call[StudyDetail]:
    """Create the study; its first trials begin at once. Raises ``InvalidSpec`` with every mistake in it.

    Args:
        idempotency_key: the same key never makes a second study; made when none is given, so that a repeat after a lost
            answer is safe.
        wait_for_nodes: create it also where no node that there is could ever hold one of its trials.
    """
    headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
    body = StudyCreate(spec=dict(spec), wait_for_nodes=wait_for_nodes)
    return typed(StudyDetail, "create_study", "POST", "/studies", body=body, headers=headers, is_repeatable=True)


def check_study(spec: Mapping[str, Any], *, wait_for_nodes: bool = False) -> Call[StudySpec]:
    """The canonical spec, as the server would take it; nothing is created. Raises like ``create_study``."""
    body = StudyCreate(spec=dict(spec), dry_run=True, wait_for_nodes=wait_for_nodes)
    return typed(StudySpec, "create_study", "POST", "/studies", body=body, is_repeatable=True)


def list_studies_page(
    *,
    project: str | None = None,
    state: Iterable[str] = (),
    user: str | None = None,
    search: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[StudyView]]:
    """One page of the studies, newest first. ``state``: any of these; ``search``: part of the name."""
    query = params(project=project, state=state, user=user, search=search, limit=limit, cursor=cursor)
    return typed(Page[StudyView], "list_studies", "GET", "/studies", query=query)


def get_study(study: str) -> Call[StudyDetail]:
    """The study of this id, or the newest visible one of this name."""
    return typed(StudyDetail, "get_study", "GET", path("/studies/{study}", study=study))


def get_study_best(study: str) -> Call[StudyBest]:
    """The best trial or, with several metrics, the Pareto front."""
    return typed(StudyBest, "get_study_best", "GET", path("/studies/{study}/best", study=study))


def list_trials_page(study: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[TrialView]]:
    """One page of the study's trials, by number."""
    at = path("/studies/{study}/trials", study=study)
    return typed(Page[TrialView], "list_trials", "GET", at, query=params(limit=limit, cursor=cursor))


def get_trial_columns(study: str, *, since: datetime | None = None) -> Call[TrialColumns]:
    """All trials in columns, for charts. ``since``: the ``until`` of an earlier answer, for what has changed alone."""
    at = path("/studies/{study}/columns", study=study)
    return typed(TrialColumns, "get_trial_columns", "GET", at, query=params(since=since))


def get_study_curves(study: str, *, limit: int | None = None) -> Call[StudyCurves]:
    """What trials reported on their way: those that run, the best, and the newest, at most ``limit``."""
    at = path("/studies/{study}/curves", study=study)
    return typed(StudyCurves, "get_study_curves", "GET", at, query=params(limit=limit))


def get_study_importance(study: str, *, metric: str | None = None) -> Call[StudyImportance]:
    """Which parameters matter, the most important first; of several metrics, of one or of all together."""
    at = path("/studies/{study}/importance", study=study)
    return typed(StudyImportance, "get_study_importance", "GET", at, query=params(metric=metric))


def get_study_prediction(study: str, *, more: int | None = None) -> Call[StudyPrediction]:
    """What ``more`` trials would bring, with an interval; its ``reason`` says why where that is not known."""
    at = path("/studies/{study}/prediction", study=study)
    return typed(StudyPrediction, "get_study_prediction", "GET", at, query=params(more=more))


def clone_study(
    study: str,
    *,
    changes: Mapping[str, Any] | None = None,
    warm_start: bool = False,
    idempotency_key: str | None = None,
    wait_for_nodes: bool = False,
) -> Call[StudyDetail]:
    """A new study from the spec of ``study``.

    Args:
        changes: laid over the spec key by key (RFC 7396); ``None`` as a value removes a key. Without a ``name`` the clone
            gets the next free one, such as ``search-2``.
        warm_start: learn from the original's trials.
        idempotency_key: the same key never makes a second clone; made when none is given.
        wait_for_nodes: create it also where no node that there is could ever hold one of its trials.
    """
    headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
    body = StudyClone(changes=dict(changes or {}), warm_start=warm_start, wait_for_nodes=wait_for_nodes)
    at = path("/studies/{study}/clone", study=study)
    return typed(StudyDetail, "clone_study", "POST", at, body=body, headers=headers, is_repeatable=True)


def check_clone(
    study: str,
    *,
    changes: Mapping[str, Any] | None = None,
    warm_start: bool = False,
    wait_for_nodes: bool = False,
) -> Call[StudySpec]:
    """The canonical spec of the clone, as the server would take it; nothing is created. Raises like ``clone_study``."""
    laid_over = dict(changes or {})
    body = StudyClone(changes=laid_over, warm_start=warm_start, dry_run=True, wait_for_nodes=wait_for_nodes)
    at = path("/studies/{study}/clone", study=study)
    return typed(StudySpec, "clone_study", "POST", at, body=body, is_repeatable=True)


def stop_study(study: str, *, reason: str = "") -> Call[StudyDetail]:
    """Cancel its trials and end it; what they have found stays."""
    at = path("/studies/{study}/stop", study=study)
    return typed(StudyDetail, "stop_study", "POST", at, body=ReasonRequest(reason=reason))


def pause_study(study: str, *, reason: str = "") -> Call[StudyDetail]:
    """Begin no more trials until it is resumed."""
    at = path("/studies/{study}/pause", study=study)
    return typed(StudyDetail, "pause_study", "POST", at, body=ReasonRequest(reason=reason))


def resume_study(study: str, *, reason: str = "") -> Call[StudyDetail]:
    """Go on with a paused study."""
    at = path("/studies/{study}/resume", study=study)
    return typed(StudyDetail, "resume_study", "POST", at, body=ReasonRequest(reason=reason))


def extend_study(
    study: str,
    *,
    trials: int | None = None,
    max_time: float | None = None,
    gpu_hours: float | None = None,
    failed_trials: int | None = None,
    parallel: int | None = None,
) -> Call[StudyDetail]:
    """Add to the budget; ``parallel`` replaces the number of trials at once. One that has ended goes on."""
    given = {
        "trials": trials,
        "max_time": max_time,
        "gpu_hours": gpu_hours,
        "failed_trials": failed_trials,
        "parallel": parallel,
    }
    body = StudyExtend.model_validate({name: value for name, value in given.items() if value is not None})
    return typed(StudyDetail, "extend_study", "POST", path("/studies/{study}/extend", study=study), body=body)


def delete_study(study: str) -> Call[None]:
    """Forget an ended study; the jobs of its trials stay."""
    return without_content("delete_study", "DELETE", path("/studies/{study}", study=study))


def suggest_trials(
    study: str, *, count: int = 1, client: str | None = None, idempotency_key: str | None = None
) -> Call[Suggestions]:
    """Points to try by yourself, of a study without a template. None with ``is_over``: no more will come; without it: ask
    again a little later.

    Args:
        client: a name of your program's own, such as a worker's host and number. Asked again under it, also after a restart,
            you first get those of its trials that are not told as complete.
        idempotency_key: the same key always gives the same trials; made when none is given, so that a repeat after a lost
            answer is safe.
    """
    headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
    at = path("/studies/{study}/suggestions", study=study)
    body = SuggestRequest(count=count, client=client)
    return typed(Suggestions, "suggest_trials", "POST", at, body=body, headers=headers, is_repeatable=True)


def heartbeat_trial(study: str, number: int) -> Call[TrialView]:
    """Say that the trial is still worked on, so that it is not ended as lost; its ``state`` tells whether it still counts."""
    at = path("/studies/{study}/trials/{number}/heartbeat", study=study, number=number)
    return typed(TrialView, "heartbeat_trial", "POST", at, is_repeatable=True)


def complete_trial(
    study: str, number: int, result: Mapping[str, float] | None = None, *, reason: str = ""
) -> Call[TrialView]:
    """Tell what a trial came to; without a ``result`` it has failed."""
    at = path("/studies/{study}/trials/{number}/complete", study=study, number=number)
    body = TrialComplete(result=None if result is None else dict(result), reason=reason)
    return typed(TrialView, "complete_trial", "POST", at, body=body, is_repeatable=True)
