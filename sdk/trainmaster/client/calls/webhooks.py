"""Calls for webhooks and their deliveries."""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.client.calls.build import params, path, typed, without_content
from trainmaster.client.steps import Call
from trainmaster.wire.base import Page
from trainmaster.wire.webhooks import (
    DeliveryView,
    WebhookChange,
    WebhookCreate,
    WebhookRotate,
    WebhookView,
    WebhookWithSecret,
)


def list_webhooks_page(
    *, project: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[WebhookView]]:
    """One page of the webhooks of the projects that the caller is admin of, newest first."""
    query = params(project=project, limit=limit, cursor=cursor)
    return typed(Page[WebhookView], "list_webhooks", "GET", "/webhooks", query=query)


def create_webhook(
    url: str, event_types: Sequence[str], *, project: str | None = None, description: str = ""
) -> Call[WebhookWithSecret]:
    """Send events to ``url``; the answer has the secret, which is shown this once.

    Args:
        event_types: such as ``["job.failed", "study.*"]``; ``["*"]`` for all.
        project: whose events; ``None``: of the whole platform (platform admins).
    """
    body = WebhookCreate(url=url, event_types=list(event_types), project=project, description=description)
    return typed(WebhookWithSecret, "create_webhook", "POST", "/webhooks", body=body)


def get_webhook(webhook: str) -> Call[WebhookView]:
    return typed(WebhookView, "get_webhook", "GET", path("/webhooks/{webhook}", webhook=webhook))


def change_webhook(
    webhook: str,
    *,
    url: str | None = None,
    event_types: Sequence[str] | None = None,
    description: str | None = None,
    is_enabled: bool | None = None,
) -> Call[WebhookView]:
    """Change what is given; ``is_enabled``: false keeps waiting deliveries and adds none."""
    types = None if event_types is None else list(event_types)
    changes = {"url": url, "event_types": types, "description": description, "is_enabled": is_enabled}
    body = WebhookChange.model_validate({name: value for name, value in changes.items() if value is not None})
    return typed(WebhookView, "change_webhook", "PATCH", path("/webhooks/{webhook}", webhook=webhook), body=body)


def delete_webhook(webhook: str) -> Call[None]:
    """Delete the webhook and its deliveries."""
    return without_content("delete_webhook", "DELETE", path("/webhooks/{webhook}", webhook=webhook))


def rotate_webhook_secret(webhook: str, *, overlap_hours: float = 24.0) -> Call[WebhookWithSecret]:
    """A new secret; for ``overlap_hours``, messages are signed with the old one as well."""
    body = WebhookRotate(overlap_hours=overlap_hours)
    at = path("/webhooks/{webhook}/rotate", webhook=webhook)
    return typed(WebhookWithSecret, "rotate_webhook_secret", "POST", at, body=body)


def test_webhook(webhook: str) -> Call[DeliveryView]:
    """Send a message of type ``webhook.test``; its delivery shows what the endpoint answered."""
    return typed(DeliveryView, "test_webhook", "POST", path("/webhooks/{webhook}/test", webhook=webhook))


def list_webhook_deliveries_page(
    webhook: str, *, state: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[DeliveryView]]:
    """One page of a webhook's deliveries, newest first; ``state``: ``waiting``, ``delivered`` or ``dead``."""
    query = params(state=state, limit=limit, cursor=cursor)
    at = path("/webhooks/{webhook}/deliveries", webhook=webhook)
    return typed(Page[DeliveryView], "list_webhook_deliveries", "GET", at, query=query)


def replay_webhook_delivery(webhook: str, delivery: int) -> Call[DeliveryView]:
    """Send a delivery again, with the same ``webhook-id``."""
    at = path("/webhooks/{webhook}/deliveries/{delivery}/replay", webhook=webhook, delivery=delivery)
    return typed(DeliveryView, "replay_webhook_delivery", "POST", at)
