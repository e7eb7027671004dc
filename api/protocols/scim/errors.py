"""Refusals in SCIM's terms."""

from __future__ import annotations

from core.domain.errors import InvalidRequest


class ScimRefusal(InvalidRequest):
    """``scim_type``: of RFC 7644, 3.12; empty: the status says all."""

    def __init__(self, sentence: str, *, scim_status: int = 400, scim_type: str = "invalidValue") -> None:
        super().__init__(sentence)
        self.scim_status = scim_status
        self.scim_type = scim_type
