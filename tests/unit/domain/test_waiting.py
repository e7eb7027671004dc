from __future__ import annotations

from core.domain.sharing.wait_phrases import addressed_to, reserved_for, starts_first


def test_a_job_is_not_informed_of_itself_as_of_another() -> None:
    numbers = {"reserved_for": "job-1"}
    retained = f"needs 2 GPUs; what becomes free on n {reserved_for('digits')}"
    assert addressed_to("job-1", "digits", retained, numbers) == "needs 2 GPUs; what becomes free on n is kept for it"
    assert addressed_to("job-2", "digits", retained, numbers) == retained
    soon = f"needs 2 GPUs; {starts_first('digits')} on n by 12:00 UTC"
    assert addressed_to("job-1", "digits", soon, numbers) == "needs 2 GPUs; it is to start on n by 12:00 UTC"
    assert addressed_to("job-1", "digits", "needs 2 GPUs", {}) == "needs 2 GPUs"
