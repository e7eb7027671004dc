"""What a batch prediction has come to."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from trainmaster.client.calls import jobs
from trainmaster.client.flows.transfer import read_file
from trainmaster.client.steps import Flow
from trainmaster.errors import NotFound
from trainmaster.wire.base import WireModel
from trainmaster.wire.serving import BatchOutcome

_ROLE: Final = "worker"


class _Summary(WireModel):
    """What one replica writes down of its shards, those of earlier runs included."""

    predictions: int
    errors: int
    first_error: str = ""


def get_batch_outcome(job: str) -> Flow[BatchOutcome | None]:
    """How many predictions and errors the batch prediction of this job wrote, and where.

    ``None``: not every replica has told, as those of a job that has not succeeded, and of images older than this client.
    """
    detail = yield from jobs.get_job(job)
    count = detail.roles.get(_ROLE, 0)
    outcome = BatchOutcome(predictions=0, errors=0, output=detail.output)
    for index in range(count):
        try:
            content = yield from read_file(detail.id, f"summary-{index}-of-{count}.json")
            one = _Summary.model_validate_json(content)
        except (NotFound, ValidationError):
            return None
        outcome = outcome.model_copy(
            update={
                "predictions": outcome.predictions + one.predictions,
                "errors": outcome.errors + one.errors,
                "first_error": outcome.first_error or one.first_error,
            }
        )
    return outcome if count else None
