"""Pagination: iterators over lists of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, TypeVar

from trainmaster.client.calls import (
    admin,
    audit,
    checkpoints,
    metrics,
    models,
    notifications,
    output,
    planner,
    service_accounts,
    serving,
    studies,
    usage,
    webhooks,
)
from trainmaster.client.calls import jobs as calls
from trainmaster.client.steps import Emit, Executable, Flow
from trainmaster.wire.audit import AuditOutcome
from trainmaster.wire.base import Page
from trainmaster.wire.models import Stage

T = TypeVar("T")

_PAGE_OF_TENSORS: Final = 1000
_EXPORTED: Final = 5_000  # entries of the audit log in one request
_LARGE: Final = 200  # the maximum page size of most lists, to read whole lists with few requests


def all_pages(page_at: Callable[[str | None], Executable[Page[T]]], *, limit: int | None = None) -> Flow[None]:
    """Emit the items of all pages, at most ``limit``; pages are requested lazily."""
    cursor: str | None = None
    left = limit
    while True:
        page = yield from page_at(cursor)
        for item in page.items:
            if left is not None and left <= 0:
                return
            yield Emit(item)
            left = None if left is None else left - 1
        cursor = page.next_cursor
        if cursor is None or (left is not None and left <= 0):
            return


def _page_size(limit: int | None) -> int:
    return _LARGE if limit is None else min(limit, _LARGE)


def list_jobs(
    *,
    project: str | None = None,
    state: Iterable[str] = (),
    label: Iterable[str] = (),
    role: str | None = None,
    name: str | None = None,
    user: str | None = None,
    study: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    search: str | None = None,
    limit: int | None = None,
) -> Flow[None]:
    """The matching jobs, newest first.

    Args:
        project: default: all visible projects.
        state: any of these.
        label: ``key=value``; all must match.
        study: ID or name of a study: the jobs of its trials, and its final job.
        limit: maximum number.
    """
    states, labels = list(state), list(label)
    return all_pages(
        lambda cursor: calls.list_jobs_page(
            project=project,
            state=states,
            label=labels,
            role=role,
            name=name,
            user=user,
            study=study,
            since=since,
            until=until,
            search=search,
            limit=None if limit is None else min(limit, _LARGE),
            cursor=cursor,
        ),
        limit=limit,
    )


def list_attempts(job: str, *, after: int | None = None) -> Flow[None]:
    """The job's attempts, oldest first, with their replicas. ``after``: only larger numbers."""
    return all_pages(lambda cursor: calls.list_attempts_page(job, after=after, cursor=cursor))


def list_replicas(job: str, number: int) -> Flow[None]:
    """The replicas of an attempt, in rank order."""
    return all_pages(lambda cursor: calls.list_replicas_page(job, number, limit=_LARGE, cursor=cursor))


def list_job_events(job: str, *, after: int | None = None, limit: int | None = None) -> Flow[None]:
    """The job's events so far, oldest first."""
    return all_pages(lambda cursor: calls.list_job_events_page(job, after=after, cursor=cursor), limit=limit)


def list_events(*, project: str | None = None, limit: int | None = None) -> Flow[None]:
    """The events of all visible jobs."""
    return all_pages(lambda cursor: calls.list_events_page(project=project, cursor=cursor), limit=limit)


def list_files(job: str, folder: str = "") -> Flow[None]:
    """The entries of ``folder`` in the job's output."""
    return all_pages(lambda cursor: output.list_files_page(job, folder, cursor=cursor))


def list_log_sources(job: str) -> Flow[None]:
    """The log files of all attempts, oldest attempt first."""
    return all_pages(lambda cursor: output.list_log_sources_page(job, limit=_LARGE, cursor=cursor))


def list_checkpoints(job: str, *, incomplete: bool = False) -> Flow[None]:
    """The job's checkpoints, newest first. ``incomplete``: include those being written or never completed."""
    return all_pages(
        lambda cursor: checkpoints.list_checkpoints_page(job, incomplete=incomplete, limit=_LARGE, cursor=cursor)
    )


def list_tensors(job: str, checkpoint: str, *, search: str = "") -> Flow[None]:
    """The tensors of the checkpoint at this path. ``search``: part of the name."""
    return all_pages(
        lambda cursor: checkpoints.list_tensors_page(
            job, checkpoint, search=search, limit=_PAGE_OF_TENSORS, cursor=cursor
        )
    )


def list_tensor_statistics(job: str, checkpoint: str, *, tensors: Iterable[str] = ()) -> Flow[None]:
    """Statistics of these tensors; default: all."""
    named = list(tensors)
    return all_pages(
        lambda cursor: checkpoints.list_tensor_statistics_page(
            job, checkpoint, tensors=named, limit=_PAGE_OF_TENSORS, cursor=cursor
        )
    )


def list_projects() -> Flow[None]:
    """The projects that the caller may see, by name."""
    return all_pages(lambda cursor: admin.list_projects_page(limit=_LARGE, cursor=cursor))


def list_service_accounts(project: str) -> Flow[None]:
    """The project's service accounts, by name."""
    return all_pages(lambda cursor: service_accounts.list_service_accounts_page(project, limit=_LARGE, cursor=cursor))


def list_service_account_tokens(project: str, account: str) -> Flow[None]:
    """The account's tokens, newest first; for admins of the project."""
    list_page = service_accounts.list_service_account_tokens_page
    return all_pages(lambda cursor: list_page(project, account, limit=_LARGE, cursor=cursor))


def list_members(project: str) -> Flow[None]:
    """A project's members, by name."""
    return all_pages(lambda cursor: admin.list_members_page(project, limit=_LARGE, cursor=cursor))


def list_secrets(project: str) -> Flow[None]:
    """The names of the project's secrets; values are never returned."""
    return all_pages(lambda cursor: admin.list_secrets_page(project, limit=_LARGE, cursor=cursor))


def list_users() -> Flow[None]:
    """The users visible to the caller, by name."""
    return all_pages(lambda cursor: admin.list_users_page(limit=_LARGE, cursor=cursor))


def list_tokens(*, user: str | None = None, all_users: bool = False) -> Flow[None]:
    """The caller's tokens, newest first; for platform admins also those of ``user`` or of all users."""
    return all_pages(lambda cursor: admin.list_tokens_page(user=user, all_users=all_users, limit=_LARGE, cursor=cursor))


def list_nodes() -> Flow[None]:
    """The nodes with their usage, by name."""
    return all_pages(lambda cursor: admin.list_nodes_page(limit=_LARGE, cursor=cursor))


def list_volumes() -> Flow[None]:
    """The volumes, by name."""
    return all_pages(lambda cursor: admin.list_volumes_page(limit=_LARGE, cursor=cursor))


def list_metrics(
    job: str,
    *,
    names: Sequence[str] | None = None,
    prefix: str | None = None,
    attempt: int | None = None,
    role: str | None = None,
    index: int | None = None,
    kind: str | None = None,
    system: bool | None = None,
) -> Flow[None]:
    """The job's series with their newest points, by attempt, role, index and name.

    Args:
        prefix: of the names.
        kind: scalar, histogram, image or text.
        system: ``False``: without the platform's own metrics.
    """
    return all_pages(
        lambda cursor: metrics.list_metrics_page(
            job,
            names=names,
            prefix=prefix,
            attempt=attempt,
            role=role,
            index=index,
            kind=kind,
            system=system,
            limit=_LARGE,
            cursor=cursor,
        )
    )


def list_metric_objects(
    job: str, name: str, *, kind: str | None = None, attempt: int | None = None, index: int | None = None
) -> Flow[None]:
    """The histograms, images or texts of one series, oldest first."""
    return all_pages(
        lambda cursor: metrics.list_metric_objects_page(
            job, name, kind=kind, attempt=attempt, index=index, limit=_LARGE, cursor=cursor
        )
    )


def list_queue(*, project: str | None = None, limit: int | None = None) -> Flow[None]:
    """The waiting jobs in queue order; at most ``limit``."""
    return all_pages(
        lambda cursor: planner.list_queue_page(project=project, limit=_page_size(limit), cursor=cursor), limit=limit
    )


def list_running() -> Flow[None]:
    """The running jobs with their expected ends."""
    return all_pages(lambda cursor: planner.list_running_page(limit=_LARGE, cursor=cursor))


def list_quotas() -> Flow[None]:
    """The quotas of the caller's projects, by name."""
    return all_pages(lambda cursor: planner.list_quotas_page(limit=_LARGE, cursor=cursor))


def list_login_providers() -> Flow[None]:
    """The identity providers by which users may log in, by name."""
    return all_pages(lambda cursor: admin.list_login_providers_page(limit=_LARGE, cursor=cursor))


def list_identities(user: str) -> Flow[None]:
    """The identities by which the user logs in, the newest first."""
    return all_pages(lambda cursor: admin.list_identities_page(user, limit=_LARGE, cursor=cursor))


def list_prices() -> Flow[None]:
    """The prices, the newest first."""
    return all_pages(lambda cursor: usage.list_prices_page(limit=_LARGE, cursor=cursor))


def list_budgets() -> Flow[None]:
    """The budgets of the caller's projects, by name, with what was spent this month."""
    return all_pages(lambda cursor: usage.list_budgets_page(limit=_LARGE, cursor=cursor))


def list_audit_entries(
    *,
    user: str | None = None,
    token: str | None = None,
    action: str | None = None,
    object: str | None = None,  # noqa: A002 (the filter's name)
    project: str | None = None,
    outcome: AuditOutcome | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
) -> Flow[None]:
    """Entries of the audit log, the newest first, at most ``limit``."""
    return all_pages(
        lambda cursor: audit.list_audit_entries_page(
            user=user, token=token, action=action, object=object, project=project, outcome=outcome, since=since,
            until=until, limit=_page_size(limit), cursor=cursor,
        ),
        limit=limit,
    )  # fmt: skip


def export_audit_log(
    *,
    user: str | None = None,
    token: str | None = None,
    action: str | None = None,
    object: str | None = None,  # noqa: A002 (as above)
    project: str | None = None,
    outcome: AuditOutcome | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Flow[None]:
    """All entries of the audit log in the order of its hash chain, for :func:`trainmaster.audit.verify_entries`."""
    after = 0
    while True:
        entries = yield from audit.export_audit_log_page(
            user=user, token=token, action=action, object=object, project=project, outcome=outcome, since=since,
            until=until, after=after, limit=_EXPORTED,
        )  # fmt: skip
        for entry in entries:
            yield Emit(entry)
        chained = [entry["position"] for entry in entries if entry["position"] is not None]
        if len(chained) < _EXPORTED:
            return
        after = chained[-1]


def list_webhooks(*, project: str | None = None) -> Flow[None]:
    """The webhooks of the projects that the caller is admin of, newest first."""
    return all_pages(lambda cursor: webhooks.list_webhooks_page(project=project, limit=_LARGE, cursor=cursor))


def list_webhook_deliveries(webhook: str, *, state: str | None = None, limit: int | None = None) -> Flow[None]:
    """The webhook's deliveries, newest first; at most ``limit``."""
    return all_pages(
        lambda cursor: webhooks.list_webhook_deliveries_page(
            webhook, state=state, limit=_page_size(limit), cursor=cursor
        ),
        limit=limit,
    )


def list_notification_channels(*, project: str | None = None) -> Flow[None]:
    """The caller's notification channels, and of projects that the caller is admin of, newest first."""
    return all_pages(
        lambda cursor: notifications.list_notification_channels_page(project=project, limit=_LARGE, cursor=cursor)
    )


def list_notifications(channel: str, *, limit: int | None = None) -> Flow[None]:
    """The channel's notifications, newest first; at most ``limit``."""
    return all_pages(
        lambda cursor: notifications.list_notifications_page(channel, limit=_page_size(limit), cursor=cursor),
        limit=limit,
    )


def list_reservations() -> Flow[None]:
    """The present and future reservations, by their begin."""
    return all_pages(lambda cursor: planner.list_reservations_page(limit=_LARGE, cursor=cursor))


def list_studies(
    *,
    project: str | None = None,
    state: Iterable[str] = (),
    user: str | None = None,
    search: str | None = None,
    limit: int | None = None,
) -> Flow[None]:
    """The studies that the caller may see, newest first; at most ``limit``. ``search``: part of the name."""
    states = list(state)
    return all_pages(
        lambda cursor: studies.list_studies_page(
            project=project, state=states, user=user, search=search, limit=_page_size(limit), cursor=cursor
        ),
        limit=limit,
    )


def list_trials(study: str) -> Flow[None]:
    """A study's trials, by number."""
    return all_pages(lambda cursor: studies.list_trials_page(study, limit=_LARGE, cursor=cursor))


def list_endpoints(*, project: str | None = None, limit: int | None = None) -> Flow[None]:
    """The endpoints that the caller may see, newest first; at most ``limit``."""
    return all_pages(
        lambda cursor: serving.list_endpoints_page(project=project, limit=_page_size(limit), cursor=cursor), limit=limit
    )


def list_endpoint_changes(endpoint: str, *, project: str = "default", limit: int | None = None) -> Flow[None]:
    """The endpoint's history, newest first; at most ``limit``."""
    return all_pages(
        lambda cursor: serving.list_endpoint_changes_page(
            endpoint, project=project, limit=_page_size(limit), cursor=cursor
        ),
        limit=limit,
    )


def list_models(project: str, *, search: str | None = None) -> Flow[None]:
    """The project's models, by name. ``search``: part of the name."""
    return all_pages(lambda cursor: models.list_models_page(project, search=search, limit=_LARGE, cursor=cursor))


def find_models(
    *,
    projects: Sequence[str] = (),
    stages: Sequence[Stage] = (),
    job: str | None = None,
    search: str | None = None,
) -> Flow[None]:
    """The models of all visible projects, by name; see ``find_models_page``."""
    return all_pages(
        lambda cursor: models.find_models_page(
            projects=projects, stages=stages, job=job, search=search, limit=_LARGE, cursor=cursor
        )
    )


def list_versions(project: str, model: str, *, stage: Stage | None = None, job: str | None = None) -> Flow[None]:
    """The model's versions, newest first."""
    return all_pages(
        lambda cursor: models.list_versions_page(project, model, stage=stage, job=job, limit=_LARGE, cursor=cursor)
    )


def list_model_changes(project: str, model: str, *, limit: int | None = None) -> Flow[None]:
    """The model's history, newest first; at most ``limit``."""
    return all_pages(
        lambda cursor: models.list_model_changes_page(project, model, limit=_page_size(limit), cursor=cursor),
        limit=limit,
    )


def list_version_files(project: str, model: str, version: int | str) -> Flow[None]:
    """The files of a ready version with their hashes, by path."""
    return all_pages(lambda cursor: models.list_version_files_page(project, model, version, limit=1000, cursor=cursor))
