"""The planner's settings, as the administrator's side has them."""

from __future__ import annotations

from core.domain.sharing.policy import Defragment, Policy, QueueOrder

__all__ = ["Defragment", "Policy", "QueueOrder"]
