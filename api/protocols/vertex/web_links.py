"""Links to our web pages in resources; the SDK prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.protocols.vertex.training.mapping import ROLES
from core.settings import Settings


def has_web_access(spec: Mapping[str, Any]) -> bool:
    """``spec``: a CustomJobSpec as sent, in camelCase or snake_case."""
    return bool(spec.get("enableWebAccess") or spec.get("enable_web_access"))


def web_access_uris(settings: Settings, job_id: str, roles: Mapping[str, Any]) -> dict[str, str]:
    """The job's page for each replica of each pool. ``roles``: of the job's spec."""
    page = f"{settings.api_url.rstrip('/')}/jobs/{job_id}"
    return {
        f"workerpool{pool}-{index}": page
        for pool, role in enumerate(ROLES)
        for index in range(int(roles[role]["replicas"]) if role in roles else 0)
    }
