"""Notification channels of users and projects, and what was sent to them."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query
from pydantic import Field
from sqlalchemy import func, insert, or_, select
from trainmaster.wire.base import Page
from trainmaster.wire.notifications import ChannelChange, ChannelCreate, ChannelView, NotificationView

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Caller, Reader, Writer, has_role
from api.http.paging import PageParams, PageQuery, make_cursor, newest_rows, read_cursor
from api.http.routing import new_router
from core.db.repositories.outgoing.notifications import new_notification
from core.db.tables import Notification, NotificationChannel, Project
from core.domain.errors import Conflict, InvalidRequest, NotFound
from core.ids import new_id
from core.outgoing.apprise_calls import NotSent, masked_url
from core.secrets import seal
from core.wakeups import TOPIC_WEBHOOKS

router = new_router("notifications", "/notification-channels")

_CHANNELS: Final = 50  # of a project, and of a user


class ChannelQuery(PageQuery):
    project: Annotated[str | None, Field(max_length=100, description="Only of this project.")] = None


@router.get("", operation_id="list_notification_channels", summary="Own notification channels, and of own projects")
def list_notification_channels(
    caller: Reader, context: AppContextDep, page: Annotated[ChannelQuery, Query()]
) -> Page[ChannelView]:
    """The caller's, and those of projects that the caller is admin of; the newest first."""
    with context.read() as work:
        query = select(NotificationChannel, Project.name).outerjoin(
            Project, Project.id == NotificationChannel.project_id
        )
        if page.project is not None:
            member = caller.member_of(work.session, page.project, "admin")
            query = query.where(NotificationChannel.project_id == member.project_id)
        else:
            own = [member.project_id for member in caller.projects.values() if has_role(member.role, "admin")]
            is_own = NotificationChannel.user_id == caller.user_id
            query = query.where(or_(is_own, NotificationChannel.project_id.in_(own)))
        rows, cursor = newest_rows(work.session, query, NotificationChannel, page)
        return Page(items=[_view(row, project) for row, project in rows], next_cursor=cursor)


@router.post("", operation_id="create_notification_channel", summary="Add a notification channel", status_code=201)
def create_notification_channel(body: ChannelCreate, caller: Writer, context: AppContextDep) -> ChannelView:
    """The URL is checked, but nothing is sent: see the test."""
    with context.read() as work:
        project_id = None
        if body.project is not None:
            project_id = caller.member_of(work.session, body.project, "admin").project_id
    shown = _checked(body.url)
    owner = project_id or caller.user_id
    with context.write() as work:
        of_owner = (
            NotificationChannel.user_id == owner if project_id is None else NotificationChannel.project_id == owner
        )
        if work.session.scalars(select(func.count(NotificationChannel.id)).where(of_owner)).one() >= _CHANNELS:
            raise Conflict(f"There are {_CHANNELS} channels already, the most there can be; delete one first.")
        channel_id = new_id("channel")
        row = NotificationChannel(
            id=channel_id,
            project_id=project_id,
            user_id=None if project_id else caller.user_id,
            description=body.description,
            ciphertext=seal(context.key, owner, channel_id, body.url),
            shown=shown,
            event_types=list(dict.fromkeys(body.event_types)),
            is_enabled=True,
            created_at=work.now,
        )
        work.session.add(row)
        _record_event(work, caller, row, "channel.created")
        return _view(row, body.project)


@router.patch("/{channel}", operation_id="change_notification_channel", summary="Change a notification channel")
def change_notification_channel(
    channel: str, body: ChannelChange, caller: Writer, context: AppContextDep
) -> ChannelView:
    """While it is disabled, no events are added, and notifications that wait are kept."""
    with context.read() as work:
        _load(work, caller, channel)
    shown = None if body.url is None else _checked(body.url)
    with context.write() as work:
        row, project = _load(work, caller, channel)
        for name, value in body.model_dump(exclude_none=True, exclude={"url"}).items():
            setattr(row, name, value)
        if body.url is not None and shown is not None:
            row.ciphertext = seal(context.key, row.project_id or row.user_id or "", row.id, body.url)
            row.shown = shown
        _record_event(work, caller, row, "channel.changed")
        return _view(row, project)


@router.delete(
    "/{channel}", operation_id="delete_notification_channel", summary="Delete a notification channel", status_code=204
)
def delete_notification_channel(channel: str, caller: Writer, context: AppContextDep) -> None:
    """What waits is not sent."""
    with context.write() as work:
        row, _ = _load(work, caller, channel)
        _record_event(work, caller, row, "channel.deleted")
        work.session.delete(row)


@router.post(
    "/{channel}/test", operation_id="test_notification_channel", summary="Send a test notification", status_code=202
)
def test_notification_channel(channel: str, caller: Writer, context: AppContextDep) -> NotificationView:
    """The list of notifications shows whether the service took it."""
    with context.write() as work:
        row, _ = _load(work, caller, channel)
        if not row.is_enabled:
            raise Conflict("The channel is disabled; enable it first.")
        columns = new_notification(row.id, "channel.test", f"channel.test: a test by {caller.user}", now=work.now)
        added = work.session.scalars(insert(Notification).values(columns).returning(Notification)).one()
        work.notify(TOPIC_WEBHOOKS)
        return _notification_view(added)


@router.get("/{channel}/notifications", operation_id="list_notifications", summary="Notifications of a channel")
def list_notifications(
    channel: str, caller: Reader, context: AppContextDep, page: PageParams
) -> Page[NotificationView]:
    """The newest first. Finished ones are listed for 14 days, unless an administrator has set another time."""
    with context.read() as work:
        row, _ = _load(work, caller, channel)
        query = select(Notification).where(Notification.channel_id == row.id)
        if page.cursor is not None:
            (last,) = read_cursor(page.cursor, (int,))
            query = query.where(Notification.id < last)
        found = work.session.scalars(query.order_by(Notification.id.desc()).limit(page.limit + 1)).all()
        cursor = make_cursor(found[page.limit - 1].id) if len(found) > page.limit else None
        return Page(items=[_notification_view(each) for each in found[: page.limit]], next_cursor=cursor)


def _load(work: UnitOfWork, caller: Caller, channel_id: str) -> tuple[NotificationChannel, str | None]:
    """The channel and the name of its project, for its user or an admin of the project.

    Raises:
        NotFound: there is none that the caller may see.
        Forbidden: the caller is a member, but no admin.
    """
    row = work.session.get(NotificationChannel, channel_id)
    what = f"notification channel {channel_id!r} that you may see; `trainmaster notify list` shows their ids"
    if row is None or (row.project_id is None and row.user_id != caller.user_id):
        raise NotFound(f"There is no {what}.")
    if row.project_id is None:
        return row, None
    return row, caller.member_of_id(work.session, row.project_id, "admin", what=what).project


def _checked(url: str) -> str:
    """What is shown of the URL. Raises ``InvalidRequest``."""
    try:
        return masked_url(url).partition("?")[0]
    except NotSent as error:
        raise InvalidRequest(
            f"url: {error}; see https://github.com/caronc/apprise/wiki for the URL of each service.", field="url"
        ) from error


def _view(row: NotificationChannel, project: str | None) -> ChannelView:
    return ChannelView(
        id=row.id,
        project=project,
        service=row.shown,
        description=row.description,
        event_types=row.event_types,
        is_enabled=row.is_enabled,
        created_at=row.created_at,
    )


def _notification_view(row: Notification) -> NotificationView:
    return NotificationView.model_validate(row, from_attributes=True)


def _record_event(work: UnitOfWork, caller: Caller, row: NotificationChannel, kind: str) -> None:
    data = {"channel": row.id, "service": row.shown, "event_types": row.event_types}
    work.record_event(kind, caller.actor, project_id=row.project_id, data=data)
