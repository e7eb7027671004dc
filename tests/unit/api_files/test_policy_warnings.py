"""What is allowed in a policy and probably not meant."""

from __future__ import annotations

import pytest

from api.policy.routes import warnings_of
from core.domain.sharing.policy import Policy, QueueOrder


def test_time_slices_that_are_no_turns_among_equals_are_reported_with_what_would_be() -> None:
    by_service = QueueOrder.ATTAINED_SERVICE
    reported = " ".join(warnings_of(Policy(time_slice_s=7200.0, order=by_service)))
    assert "stays while it is on the same level as the waiting jobs" in reported
    assert "rotation=2h, lets equal jobs take turns" in reported
    by_age = " ".join(warnings_of(Policy(time_slice_s=60.0, order=QueueOrder.FIFO)))
    assert "time_slice does not rotate jobs" in by_age
    assert "rotation=10m, lets" in by_age  # not as short as the slice: restarts would take more than a tenth of it
    assert warnings_of(Policy(time_slice_s=7200.0, order=by_service, levels_gpu_s=(7200.0, 14400.0, 21600.0))) == []
    assert warnings_of(Policy(time_slice_s=7200.0, order=QueueOrder.SHORTEST_FIRST)) == []


@pytest.mark.parametrize(
    ("policy", "warning"),
    [
        (Policy(), None),
        (Policy(rotation_s=1800.0), None),
        (Policy(rotation_s=1800.0, time_slice_s=900.0, order=QueueOrder.FIFO), None),
        (Policy(rotation_s=120.0), "rotation is shorter than min_run_time, 5m: no job is preempted before"),
        (Policy(rotation_s=500.0), "rotation is less than ten times restart_cost plus grace"),
        (Policy(rotation_s=1800.0, time_slice_s=7200.0), "time_slice is longer than rotation and has no effect"),
        (Policy(rotation_s=7200.0, starvation_s=3600.0), "rotation is not shorter than starvation"),
    ],
)
def test_turns_among_equals_that_are_probably_not_meant_so_are_reported(policy: Policy, warning: str | None) -> None:
    found = warnings_of(policy)
    assert not found if warning is None else any(warning in sentence for sentence in found)
