"""Webhooks of projects (their admins) and of the platform (platform admins), and their deliveries."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, cast
from urllib.parse import urlsplit

from fastapi import Path, Query
from pydantic import Field
from sqlalchemy import func, insert, select
from trainmaster.wire.base import Page
from trainmaster.wire.webhooks import (
    DeliveryStateName,
    DeliveryView,
    WebhookChange,
    WebhookCreate,
    WebhookRotate,
    WebhookView,
    WebhookWithSecret,
)

from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import Caller, Reader, Writer, has_role
from api.http.paging import PageQuery, make_cursor, newest_rows, read_cursor
from api.http.routing import new_router
from core.db.repositories.outgoing.webhooks import DeliveryState, new_delivery
from core.db.tables import Project, Webhook, WebhookDelivery
from core.domain.errors import Conflict, Forbidden, InvalidRequest, NotFound
from core.ids import new_id
from core.outgoing.events import message_body
from core.outgoing.networks import OutboundNetworks, RefusedAddress
from core.outgoing.signatures import new_webhook_secret
from core.secrets import seal
from core.wakeups import TOPIC_WEBHOOKS

router = new_router("webhooks", "/webhooks")

_WEBHOOKS: Final = 100  # of a project, and of the platform
_PLATFORM: Final = "Webhooks of the whole platform need a platform admin, with a token of scope admin."


class WebhookQuery(PageQuery):
    project: Annotated[str | None, Field(max_length=100, description="Only of this project.")] = None


class DeliveryQuery(PageQuery):
    state: DeliveryStateName | None = None


DeliveryId = Annotated[int, Path(ge=1, lt=2**63)]


@router.get("", operation_id="list_webhooks", summary="Webhooks of projects that the caller is admin of")
def list_webhooks(caller: Reader, context: AppContextDep, page: Annotated[WebhookQuery, Query()]) -> Page[WebhookView]:
    """The newest first; platform admins see all."""
    with context.read() as work:
        query = select(Webhook, Project.name).outerjoin(Project, Project.id == Webhook.project_id)
        if page.project is not None:
            query = query.where(Webhook.project_id == caller.member_of(work.session, page.project, "admin").project_id)
        elif not caller.is_admin:
            own = [member.project_id for member in caller.projects.values() if has_role(member.role, "admin")]
            query = query.where(Webhook.project_id.in_(own))
        rows, cursor = newest_rows(work.session, query, Webhook, page)
        return Page(items=_views(work, rows), next_cursor=cursor)


@router.post("", operation_id="create_webhook", summary="Add a webhook", status_code=201)
def create_webhook(body: WebhookCreate, caller: Writer, context: AppContextDep) -> WebhookWithSecret:
    """The answer has the secret that verifies its messages, by https://www.standardwebhooks.com; it is shown once."""
    _check_url(body.url, context)
    secret = new_webhook_secret()
    with context.write() as work:
        project_id = None
        if body.project is not None:
            project_id = caller.member_of(work.session, body.project, "admin").project_id
        elif not caller.is_admin:
            raise Forbidden(_PLATFORM, field="project")
        own = select(func.count()).select_from(Webhook).where(Webhook.project_id.is_not_distinct_from(project_id))
        if work.session.execute(own).scalar_one() >= _WEBHOOKS:
            raise Conflict(f"There are {_WEBHOOKS} webhooks already, the most there can be; delete one first.")
        webhook_id = new_id("webhook")
        row = Webhook(
            id=webhook_id,
            project_id=project_id,
            url=body.url,
            description=body.description,
            event_types=list(dict.fromkeys(body.event_types)),
            ciphertext=seal(context.key, project_id or "", webhook_id, secret),
            created_by=caller.user_id,
            created_at=work.now,
            updated_at=work.now,
        )
        work.session.add(row)
        work.session.flush()
        _record_event(work, caller, row, "webhook.created")
        return WebhookWithSecret(**_view(work, row, body.project).model_dump(), secret=secret)


@router.get("/{webhook}", operation_id="get_webhook", summary="A webhook")
def get_webhook(webhook: str, caller: Reader, context: AppContextDep) -> WebhookView:
    with context.read() as work:
        row, project = _load(work, caller, webhook)
        return _view(work, row, project)


@router.patch("/{webhook}", operation_id="change_webhook", summary="Change, enable or disable a webhook")
def change_webhook(webhook: str, body: WebhookChange, caller: Writer, context: AppContextDep) -> WebhookView:
    """While it is disabled, events are not added, and deliveries that wait are kept until it is enabled."""
    if body.url is not None:
        _check_url(body.url, context)
    with context.write() as work:
        row, project = _load(work, caller, webhook)
        changes = body.model_dump(exclude_none=True)
        for name, value in changes.items():
            setattr(row, name, value)
        if body.is_enabled:
            row.disabled_reason = ""
        row.updated_at = work.now
        work.session.flush()
        _record_event(work, caller, row, "webhook.changed")
        work.notify(TOPIC_WEBHOOKS)
        return _view(work, row, project)


@router.delete("/{webhook}", operation_id="delete_webhook", summary="Delete a webhook", status_code=204)
def delete_webhook(webhook: str, caller: Writer, context: AppContextDep) -> None:
    """Its deliveries are deleted, also those that wait."""
    with context.write() as work:
        row, _ = _load(work, caller, webhook)
        _record_event(work, caller, row, "webhook.deleted")
        work.session.delete(row)


@router.post("/{webhook}/rotate", operation_id="rotate_webhook_secret", summary="Replace a webhook's secret")
def rotate_webhook_secret(
    webhook: str, body: WebhookRotate, caller: Writer, context: AppContextDep
) -> WebhookWithSecret:
    """For a while messages carry signatures of both secrets: give the new one to the receiver meanwhile."""
    secret = new_webhook_secret()
    with context.write() as work:
        row, project = _load(work, caller, webhook)
        row.old_ciphertext = row.ciphertext
        row.old_secret_until = work.now + timedelta(hours=body.overlap_hours)
        row.ciphertext = seal(context.key, row.project_id or "", row.id, secret)
        row.updated_at = work.now
        work.session.flush()
        _record_event(work, caller, row, "webhook.rotated")
        return WebhookWithSecret(**_view(work, row, project).model_dump(), secret=secret)


@router.post("/{webhook}/test", operation_id="test_webhook", summary="Send a test message", status_code=202)
def test_webhook(webhook: str, caller: Writer, context: AppContextDep) -> DeliveryView:
    """Of type `webhook.test`. Its delivery shows what the endpoint answered."""
    with context.write() as work:
        row, project = _load(work, caller, webhook)
        if not row.is_enabled:
            raise Conflict("The webhook is disabled; enable it first.")
        text = message_body("webhook.test", work.now, {"project": project, "webhook": row.id, "actor": caller.actor})
        columns = new_delivery(row.id, "webhook.test", text, now=work.now)
        added = insert(WebhookDelivery).values(columns).returning(WebhookDelivery)
        delivery = work.session.scalars(added).one()
        work.notify(TOPIC_WEBHOOKS)
        return _delivery_view(delivery)


@router.get("/{webhook}/deliveries", operation_id="list_webhook_deliveries", summary="Deliveries of a webhook")
def list_webhook_deliveries(
    webhook: str, caller: Reader, context: AppContextDep, page: Annotated[DeliveryQuery, Query()]
) -> Page[DeliveryView]:
    """The newest first. Finished ones are listed for 14 days, unless an administrator has set another time."""
    with context.read() as work:
        row, _ = _load(work, caller, webhook)
        query = select(WebhookDelivery).where(WebhookDelivery.webhook_id == row.id)
        if page.state is not None:
            query = query.where(WebhookDelivery.state == page.state)
        if page.cursor is not None:
            (last,) = read_cursor(page.cursor, (int,))
            query = query.where(WebhookDelivery.id < last)
        found = work.session.scalars(query.order_by(WebhookDelivery.id.desc()).limit(page.limit + 1)).all()
        cursor = make_cursor(found[page.limit - 1].id) if len(found) > page.limit else None
        return Page(items=[_delivery_view(delivery) for delivery in found[: page.limit]], next_cursor=cursor)


@router.post(
    "/{webhook}/deliveries/{delivery}/replay",
    operation_id="replay_webhook_delivery",
    summary="Send a delivery again",
    status_code=202,
)
def replay_webhook_delivery(webhook: str, delivery: DeliveryId, caller: Writer, context: AppContextDep) -> DeliveryView:
    """With the same `webhook-id`, and as many attempts as a new one; also if it waits for its next attempt."""
    with context.write() as work:
        row, _ = _load(work, caller, webhook)
        found = work.session.get(WebhookDelivery, delivery, with_for_update=True)
        if found is None or found.webhook_id != row.id:
            raise NotFound(f"This webhook has no delivery {delivery}; `trainmaster webhook deliveries` lists them.")
        if not row.is_enabled:
            raise Conflict("The webhook is disabled; enable it first.")
        found.state, found.attempts, found.next_at, found.finished_at = DeliveryState.WAITING, 0, work.now, None
        work.notify(TOPIC_WEBHOOKS)
        return _delivery_view(found)


def _load(work: UnitOfWork, caller: Caller, webhook_id: str) -> tuple[Webhook, str | None]:
    """The webhook and the name of its project, for an admin of it.

    Raises:
        NotFound: there is none that the caller may see.
        Forbidden: the caller is a member, but no admin.
    """
    row = work.session.get(Webhook, webhook_id)
    what = f"webhook {webhook_id!r} that you may see; `trainmaster webhook list` shows their ids"
    if row is None or (row.project_id is None and not caller.is_admin):
        raise NotFound(f"There is no {what}.")
    if row.project_id is None:
        return row, None
    return row, caller.member_of_id(work.session, row.project_id, "admin", what=what).project


def _check_url(url: str, context: AppContext) -> None:
    """Raises ``InvalidRequest``: no URL of an endpoint, or of an address that is refused."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port, or of an IPv6 address
        parts, is_good = urlsplit(""), False
    if not is_good or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidRequest(f"url: {url!r} is not like https://example.com/hook.", field="url")
    if parts.username is not None:
        raise InvalidRequest("url: leave out user and password; the signature proves the sender.", field="url")
    try:
        OutboundNetworks(context.settings.outbound_networks).check_host(parts.hostname or "")
    except RefusedAddress as refused:
        raise InvalidRequest(f"url: {refused}.", field="url") from refused


def _views(work: UnitOfWork, rows: object) -> list[WebhookView]:
    return [_view(work, row, project) for row, project in cast("list[tuple[Webhook, str | None]]", rows)]


def _view(work: UnitOfWork, row: Webhook, project: str | None) -> WebhookView:
    states = (
        select(WebhookDelivery.state, func.count())
        .where(WebhookDelivery.webhook_id == row.id, WebhookDelivery.state != DeliveryState.DELIVERED)
        .group_by(WebhookDelivery.state)
    )
    counts: dict[str, int] = {found[0]: found[1] for found in work.session.execute(states)}
    has_old = row.old_secret_until is not None and row.old_secret_until > work.now
    return WebhookView(
        id=row.id,
        project=project,
        url=row.url,
        description=row.description,
        event_types=row.event_types,
        is_enabled=row.is_enabled,
        disabled_reason=row.disabled_reason,
        old_secret_until=row.old_secret_until if has_old else None,
        waiting=counts.get(DeliveryState.WAITING, 0),
        dead=counts.get(DeliveryState.DEAD, 0),
        created_at=row.created_at,
    )


def _delivery_view(row: WebhookDelivery) -> DeliveryView:
    return DeliveryView(
        id=row.id,
        event_id=row.event_id,
        event_type=row.event_type,
        object=row.object_key,
        state=cast("DeliveryStateName", row.state),
        attempts=row.attempts,
        next_at=row.next_at if row.state == DeliveryState.WAITING else None,
        response_status=row.response_status,
        response_excerpt=row.response_excerpt,
        error=row.error,
        duration_ms=row.duration_ms,
        created_at=row.created_at,
        finished_at=row.finished_at,
        body=row.body,
    )


def _record_event(work: UnitOfWork, caller: Caller, row: Webhook, kind: str) -> None:
    data = {"webhook": row.id, "url": row.url, "event_types": row.event_types, "is_enabled": row.is_enabled}
    work.record_event(kind, caller.actor, project_id=row.project_id, data=data)
