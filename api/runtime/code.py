"""A job's code archive for its replicas: an attempt's token gives access to exactly one archive."""

from __future__ import annotations

import os

from sqlalchemy import select

from api.app.unit_of_work import AppContext
from api.archives.service import store_of
from core.db.tables import Attempt, Job
from core.domain.errors import AttemptEnded, NotFound
from core.domain.ids import AttemptId


def open_code(context: AppContext, attempt_id: AttemptId) -> int:
    """A file descriptor for reading the code archive of the attempt's job.

    Raises:
        NotFound: the job has no code, or its archive is gone.
        AttemptEnded: it has ended, or its job was deleted.
    """
    with context.read() as work:
        row = work.session.execute(
            select(Job.spec, Job.deleted_at, Attempt.ended_at)
            .join(Attempt, Attempt.job_id == Job.id)
            .where(Attempt.id == attempt_id)
        ).one_or_none()
    if row is None:
        raise NotFound(f"There is no attempt {attempt_id}.")
    if row.deleted_at is not None or row.ended_at is not None:
        raise AttemptEnded("The attempt of this token has ended; no more of its replicas start.")
    digest = row.spec.get("code")
    if digest is None:
        raise NotFound("The job was submitted without code.")
    try:
        return os.open(store_of(context).path_of(digest), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound("The job's code archive is gone; submit the job again to upload it.") from None
