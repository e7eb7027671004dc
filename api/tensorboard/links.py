"""Addresses under which somebody looks at some jobs in TensorBoard.

The address is the right to look: a page that shows what users' files hold must not have the platform's session, so no
cookie is asked for and none is taken. It ends with the token that asked for it, and after a day at the latest.
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

from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import CALLER_TTL, Caller, JobAccess, load_caller
from api.tensorboard.viewers import Output
from core.db.tables import Job, TensorBoardLink, Token, Volume
from core.domain.errors import Conflict, Forbidden, NotFound, Unauthenticated
from core.tokens import token_digest

PREFIX: Final = "/tensorboard"
LINK_TTL: Final = timedelta(hours=24)
_KEPT: Final = 1_000  # links that are remembered
_GONE: Final = "This address of a TensorBoard is not good any more; open it again from the job's page, or with `trainmaster tensorboard`."


@dataclass(frozen=True, slots=True)
class Sight:
    """What an address shows. ``key``: equal for the same jobs."""

    secret: str
    key: str
    outputs: tuple[Output, ...]


class SightCache:
    """Sights by the digest of their address, as long as callers are remembered: a page asks for many things at once."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[datetime, Sight]] = {}

    def get(self, digest: str, now: datetime) -> Sight | None:
        kept = self._kept.get(digest)
        return kept[1] if kept is not None and kept[0] > now else None

    def put(self, digest: str, sight: Sight, until: datetime) -> None:
        if len(self._kept) >= _KEPT:
            self._kept.clear()
        self._kept[digest] = (until, sight)


def make_link(work: UnitOfWork, caller: Caller, refs: Sequence[str]) -> TensorBoardLinkView:
    """An address for these jobs. Raises ``NotFound`` or ``Forbidden`` for a job that the caller may not see."""
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


def load_sight(context: AppContext, secret: str, now: datetime) -> Sight:
    """What the address shows now. Raises ``NotFound`` when it is unknown, over, or its user may see a job no more."""
    with context.read() as work:
        row = work.session.execute(
            select(TensorBoardLink, Token.digest)
            .join(Token, Token.id == TensorBoardLink.token_id)
            .where(TensorBoardLink.digest == token_digest(secret), TensorBoardLink.expires_at > now)
        ).one_or_none()
    if row is None:
        raise NotFound(_GONE)
    link, digest = row
    try:
        caller, _ = load_caller(context, digest, now)
        with context.read() as work:
            jobs = [JobAccess(caller, job_id, "viewer").load(work.session) for job_id in link.job_ids]
            names = _names(jobs)
            outputs = tuple(_output(work, job, names[job.id]) for job in jobs)
    except (Unauthenticated, Forbidden, NotFound, Conflict) as error:
        raise NotFound(_GONE) from error
    return Sight(secret, ",".join(job.id for job in jobs), outputs)


async def _sight(request: Request, context: AppContextDep, secret: Annotated[str, Path(max_length=100)]) -> Sight:
    cache: SightCache = request.app.state.sights
    digest, now = token_digest(secret), context.clock()
    known = cache.get(digest, now)
    if known is None:
        known = await run_in_threadpool(load_sight, context, secret, now)
        cache.put(digest, known, now + CALLER_TTL)
    return known


SightDep = Annotated[Sight, Depends(_sight)]
"""The right to look at some jobs, by the address that was asked for."""


def _output(work: UnitOfWork, job: Job, name: str) -> Output:
    volume = work.session.execute(select(Volume).where(Volume.name == job.output_volume)).scalar_one_or_none()
    if volume is None or volume.root is None:
        raise Conflict(f"The control plane does not see the output of job {job.name}, on volume {job.output_volume}.")
    return Output(name, volume.root, job.output_path)


def _names(jobs: Sequence[Job]) -> dict[str, str]:
    """What each is called in TensorBoard: its name, and where several have it a part of its id too."""
    count = [job.name for job in jobs]
    return {job.id: job.name if count.count(job.name) == 1 else f"{job.name}-{job.id[-6:]}" for job in jobs}
