"""Calls for notification channels and notifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainmaster.client.calls.build import params, path, typed, without_content
from trainmaster.client.steps import Call
from trainmaster.wire.base import Page
from trainmaster.wire.notifications import ChannelChange, ChannelCreate, ChannelView, NotificationView


def list_notification_channels_page(
    *, project: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[ChannelView]]:
    """One page of the caller's channels, and of those of projects that the caller is admin of, newest first."""
    query = params(project=project, limit=limit, cursor=cursor)
    return typed(Page[ChannelView], "list_notification_channels", "GET", "/notification-channels", query=query)


def create_notification_channel(
    url: str, *, project: str | None = None, event_types: Sequence[str] | None = None, description: str = ""
) -> Call[ChannelView]:
    """Notify by a service of Apprise.

    Args:
        url: such as ``"slack://…"``, ``"mailtos://…"``; it is stored sealed and never shown.
        project: of all its events (its admins); ``None``: of the caller's own jobs.
        event_types: such as ``["job.failed", "storage.*"]``; ``None``: ends, failures, losses, full storage.
    """
    fields: dict[str, Any] = {} if event_types is None else {"event_types": list(event_types)}
    body = ChannelCreate(url=url, project=project, description=description, **fields)
    return typed(ChannelView, "create_notification_channel", "POST", "/notification-channels", body=body)


def change_notification_channel(
    channel: str,
    *,
    url: str | None = None,
    event_types: Sequence[str] | None = None,
    description: str | None = None,
    is_enabled: bool | None = None,
) -> Call[ChannelView]:
    """Change what is given."""
    types = None if event_types is None else list(event_types)
    changes = {"url": url, "event_types": types, "description": description, "is_enabled": is_enabled}
    body = ChannelChange.model_validate({name: value for name, value in changes.items() if value is not None})
    at = path("/notification-channels/{channel}", channel=channel)
    return typed(ChannelView, "change_notification_channel", "PATCH", at, body=body)


def delete_notification_channel(channel: str) -> Call[None]:
    at = path("/notification-channels/{channel}", channel=channel)
    return without_content("delete_notification_channel", "DELETE", at)


def test_notification_channel(channel: str) -> Call[NotificationView]:
    """Send a test; the list of notifications shows whether the service took it."""
    at = path("/notification-channels/{channel}/test", channel=channel)
    return typed(NotificationView, "test_notification_channel", "POST", at)


def list_notifications_page(
    channel: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[Page[NotificationView]]:
    """One page of a channel's notifications, newest first."""
    at = path("/notification-channels/{channel}/notifications", channel=channel)
    query = params(limit=limit, cursor=cursor)
    return typed(Page[NotificationView], "list_notifications", "GET", at, query=query)
