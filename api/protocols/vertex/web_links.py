"""The addresses of our pages, as resources name them. The SDK prints them: the one place where its user reads any of
ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.protocols.vertex.training.mapping import ROLES
from core.settings import Settings


def has_web_access(spec: Mapping[str, Any]) -> bool:
    """``spec``: a CustomJobSpec as its client sent it, in either spelling."""
    return bool(spec.get("enableWebAccess") or spec.get("enable_web_access"))


def web_access_uris(settings: Settings, job_id: str, roles: Mapping[str, Any]) -> dict[str, str]:
    """The job's page for each replica of each pool. ``roles``: of the job's spec."""
    page = f"{settings.api_url.rstrip('/')}/jobs/{job_id}"
    return {
        f"workerpool{pool}-{index}": page
        for pool, role in enumerate(ROLES)
        for index in range(int(roles[role]["replicas"]) if role in roles else 0)
    }
