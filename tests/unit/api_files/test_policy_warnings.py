"""What is allowed in a policy and probably not meant."""

from __future__ import annotations

from api.policy.service import warnings_of
from core.domain.policy import Policy, QueueOrder


def test_time_slices_that_are_no_turns_among_equals_are_told_with_what_would_be() -> None:
    told = " ".join(warnings_of(Policy(time_slice_s=7200.0)))
    assert "who is on one level with those that wait stays" in told
    assert "levels_gpu=2h,4h,6h,8h" in told
    assert warnings_of(Policy(time_slice_s=7200.0, levels_gpu_s=(7200.0, 14400.0, 21600.0))) == []
    assert warnings_of(Policy(time_slice_s=7200.0, order=QueueOrder.SHORTEST_FIRST)) == []
