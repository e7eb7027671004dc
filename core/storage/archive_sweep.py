"""Garbage collection of code archives; run periodically by the scheduler."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, exists, or_, select

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Archive, Job, Study
from core.storage.archives import ArchiveStore

# One archive per transaction, so many per call: the next sweep continues.
_BATCH = 500


def sweep_archives(
    sessions: SessionFactory,
    store: ArchiveStore,
    *,
    now: datetime,
    unfinished_after: timedelta = timedelta(days=1),
    unused_after: timedelta = timedelta(days=30),
) -> int:
    """Delete stale uploads, and archives that no job or study references (except deleted ones) and that were not used
    lately.

    Safe during uploads and submissions: these set ``used_at`` before they open the file, and the row is deleted here
    before the
    file, in one transaction.

    Returns:
        The number of deleted files.
    """
    dropped = store.drop_unfinished(now=now, older_than=unfinished_after)
    # A study that is paused, or extended long after its jobs were deleted, starts trials from it.
    of_a_study = Study.spec["template"]["code"].as_string() == Archive.digest
    is_named = or_(
        exists().where(Job.spec["code"].as_string() == Archive.digest, Job.deleted_at.is_(None)),
        exists().where(of_a_study, Study.deleted_at.is_(None)),
    )
    is_stale = Archive.used_at < now - unused_after
    with unit_of_work(sessions, read_only=True) as session:
        digests = list(session.scalars(select(Archive.digest).where(is_stale, ~is_named).limit(_BATCH)))
        # Completed just before a crash that lost the row, and never requested again.
        old = store.digests_older_than(now - unused_after)
        known = set(session.scalars(select(Archive.digest).where(Archive.digest.in_(old[:_BATCH]))))
    for digest in digests:
        with unit_of_work(sessions) as session:
            hit = session.execute(
                delete(Archive).where(Archive.digest == digest, is_stale, ~is_named).returning(Archive.digest)
            ).scalar_one_or_none()
            if hit is not None:
                # Before the commit: a request that waits for this row's lock to announce the archive again then finds
                # no file.
                store.remove(digest)
                dropped += 1
    for digest in set(old[:_BATCH]) - known:
        store.remove(digest)
        dropped += 1
    return dropped
