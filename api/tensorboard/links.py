"""Secret addresses (capability URLs) of TensorBoards for sets of jobs.

The address itself gives access: a page that shows users' files must not have the platform's session, so no cookie is
needed or accepted. An address is valid as long as the token that created it, at most for a day.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import Depends, Path, Request
from sqlalchemy import delete, select
from starlette.concurrency import run_in_threadpool
from trainmaster.wire.jobs import TensorBoardLinkView

from api.app.cache import ExpiringCache
from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import CALLER_TTL, Caller, JobAccess, load_caller
from api.tensorboard.viewers import ViewedOutput
from core.db.tables import Job, TensorBoardLink, Token, Volume
from core.domain.errors import Conflict, Forbidden, NotFound, Unauthenticated
from core.tokens import token_digest

PREFIX: Final = "/tensorboard"
LINK_TTL: Final = timedelta(hours=24)
VIEW_LIMIT: Final = 1_000  # addresses in the cache
_NO_OUTPUT: Final = (
    "This TensorBoard address is no longer valid; open it again from the job's page, or with `trainmaster tensorboard`."
)


@dataclass(frozen=True, slots=True)
class TensorBoardView:
    """The jobs' outputs that an address shows. ``key``: equal for the same jobs."""

    secret: str
    key: str
    outputs: tuple[ViewedOutput, ...]


# By the digest of their address, as long as callers are cached: a page sends many requests at once.
TensorBoardViewCache = ExpiringCache[TensorBoardView]


def make_link(work: UnitOfWork, caller: Caller, refs: Sequence[str]) -> TensorBoardLinkView:
    """Create an address for these jobs. Raises ``NotFound`` or ``Forbidden`` for a job that the caller may not see."""
    jobs = {job.id: job for job in (JobAccess(caller, ref, "viewer").load(work.session) for ref in refs)}
    for job in jobs.values():
        _output(work, job, job.name)
    secret = secrets.token_urlsafe(32)
    expires_at = work.now + LINK_TTL
    work.session.execute(delete(TensorBoardLink).where(TensorBoardLink.expires_at < work.now))
    work.session.add(
        TensorBoardLink(
            digest=token_digest(secret),
            user_id=caller.user_id,
            token_id=caller.token_id,
            job_ids=sorted(jobs),
            created_at=work.now,
            expires_at=expires_at,
        )
    )
    return TensorBoardLinkView(path=f"{PREFIX}/{secret}/", jobs=sorted(jobs), expires_at=expires_at)


def load_view(context: AppContext, secret: str, now: datetime) -> TensorBoardView:
    """The view of an address. Raises ``NotFound`` when it is unknown, expired, or its user has lost access to a job."""
    with context.read() as work:
        row = work.session.execute(
            select(TensorBoardLink, Token.digest)
            .join(Token, Token.id == TensorBoardLink.token_id)
            .where(TensorBoardLink.digest == token_digest(secret), TensorBoardLink.expires_at > now)
        ).one_or_none()
    if row is None:
        raise NotFound(_NO_OUTPUT)
    link, digest = row
    try:
        caller, _ = load_caller(context, digest, now)
        with context.read() as work:
            jobs = [JobAccess(caller, job_id, "viewer").load(work.session) for job_id in link.job_ids]
            names = _names(jobs)
            outputs = tuple(_output(work, job, names[job.id]) for job in jobs)
    except (Unauthenticated, Forbidden, NotFound, Conflict) as error:
        raise NotFound(_NO_OUTPUT) from error
    return TensorBoardView(secret, ",".join(job.id for job in jobs), outputs)


async def _view(
    request: Request, context: AppContextDep, secret: Annotated[str, Path(max_length=100)]
) -> TensorBoardView:
    cache: TensorBoardViewCache = request.app.state.tensorboard_views
    digest, now = token_digest(secret), context.clock()
    known = cache.get(digest, now)
    if known is None:
        known = await run_in_threadpool(load_view, context, secret, now)
        cache.put(digest, known, now + CALLER_TTL)
    return known


TensorBoardViewDep = Annotated[TensorBoardView, Depends(_view)]
"""Access to the view of some jobs, by the requested address."""


def _output(work: UnitOfWork, job: Job, name: str) -> ViewedOutput:
    volume = work.session.execute(select(Volume).where(Volume.name == job.output_volume)).scalar_one_or_none()
    if volume is None or volume.root is None:
        raise Conflict(f"The control plane cannot read the output of job {job.name}, on volume {job.output_volume}.")
    return ViewedOutput(name, volume.root, job.output_path)


def _names(jobs: Sequence[Job]) -> dict[str, str]:
    """The names of the jobs in TensorBoard: their own; jobs with equal names also get a part of their id."""
    count = [job.name for job in jobs]
    return {job.id: job.name if count.count(job.name) == 1 else f"{job.name}-{job.id[-6:]}" for job in jobs}
