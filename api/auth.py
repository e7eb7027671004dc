"""Authentication and authorisation: every handler's signature states its required scope and role.

``caller: Reader`` (any valid token), ``caller: Writer``, ``caller: PlatformAdmin``;
``project: Annotated[ProjectAccess, Depends(project_of("admin"))]`` for routes with ``{project}``, and
``job: Annotated[JobAccess, Depends(job_of("member"))]`` for routes with ``{job}``: their ``load`` is the only way to
the row, and checks the role in the same transaction. A resource that the caller may not see is answered with 404, not
403.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from fastapi import Depends, Path, Request
from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from trainmaster.spec.errors import suggest

from api.app import audit
from api.app.cache import ExpiringCache
from api.app.fair_use import fair_use_of
from api.app.token_scopes import RESOURCES, SCIM, Scope, allows, resource_of
from api.app.unit_of_work import AppContext, AppContextDep
from core.db.tables import Job, Membership, Project, Token, User
from core.domain.errors import Forbidden, NotFound, TokenExpired, TooManyRequests, TrainmasterError, Unauthenticated
from core.domain.ids import AttemptId
from core.tokens import ATTEMPT_PREFIX, SESSION_PREFIX, token_digest, verify_attempt_token

SESSION_COOKIE: Final = "trainmaster_session"
# A revoked token, a removed member, a disabled user go on for at most this long on other API processes; a change made
# through this process counts at once (see ``forget_callers``).
CALLER_TTL: Final = timedelta(seconds=3)
CALLER_LIMIT: Final = 10_000  # callers in the cache
_VERSION_LENGTH: Final = 40
_LAST_USED_STEP: Final = timedelta(minutes=5)  # last_used_at is written at most this often
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NO_BEARER: Final = (
    "This is a browser's session, which is valid as its cookie alone; programs need a token "
    "(`trainmaster token create`)."
)


Role = Literal["viewer", "member", "admin"]
_ROLES: Final[tuple[Role, ...]] = ("viewer", "member", "admin")


@dataclass(frozen=True, slots=True)
class ProjectMembership:
    """The caller's membership in one project."""

    project_id: str
    project: str
    role: Role


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated user, with the rights of the token.

    ``projects``: by id, those that the token may see (all, for a platform admin). ``resource``: of this request, see
    ``resource_of``.
    """

    user_id: str
    user: str
    is_admin: bool  # the user is a platform admin *and* this token has the scope admin, for all projects
    scopes: frozenset[str]
    token_id: str
    projects: Mapping[str, ProjectMembership]
    project_ids_limit: frozenset[str] | None = None  # what the token is limited to
    is_service_account: bool = False
    resource: str | None = None

    @property
    def actor(self) -> str:
        """The name of the user in events."""
        return f"user:{self.user}"

    def may(self, scope: Scope) -> bool:
        return allows(self.scopes, scope, self.resource)

    def demand(self, scope: Scope) -> None:
        """Raises ``Forbidden`` if the token lacks the scope."""
        if not self.may(scope):
            own = ", ".join(sorted(self.scopes)) or "nothing"
            narrow = f" or {self.resource}:{scope}" if self.resource in RESOURCES and scope is not Scope.ADMIN else ""
            raise Forbidden(f"This needs a token of scope {scope}{narrow}; yours has {own}. Log in with another token.")

    def member_of(self, session: Session, project: str, role: Role = "viewer") -> ProjectMembership:
        """The caller's membership in the project of this name.

        Raises:
            NotFound: there is no such project, or the caller may not see it.
            Forbidden: the caller's role there is below ``role``.
        """
        known = next((member for member in self.projects.values() if member.project == project), None)
        # Cached roles may be seconds old: read the database before a refusal.
        if known is None or not has_role(known.role, role):
            known = _find_member(session, self, Project.name == project) or known
        if known is None:
            meant = suggest(project, (member.project for member in self.projects.values()))
            hint = f"Did you mean {meant}?" if meant else "`GET /api/v1/projects` lists yours."
            raise NotFound(f"There is no project {project!r} that you may see. {hint}")
        return _demand(known, role)

    def project_ids(self, session: Session, names: Collection[str] = ()) -> list[str] | None:
        """Ids of the projects ``names``, else of all that the caller may see; ``None``: all of the platform.

        Raises:
            NotFound: one of ``names`` does not exist, or the caller may not see it.
        """
        if names:
            return [self.member_of(session, name).project_id for name in names]
        return None if self.is_admin else list(self.projects)

    def member_of_id(self, session: Session, project_id: str, role: Role, *, what: str) -> ProjectMembership:
        """Like ``member_of``, by id; ``what`` names the resource of the project in the error message."""
        known = self.projects.get(project_id)
        if known is None or not has_role(known.role, role):
            known = _find_member(session, self, Project.id == project_id) or known
        if known is None:
            raise NotFound(f"There is no {what}.")
        return _demand(known, role)


def has_role(own: Role, wanted: Role) -> bool:
    return _ROLES.index(own) >= _ROLES.index(wanted)


def _role(text: str) -> Role:
    # An unknown role, written by a newer version, counts as the lowest.
    return _ROLES[_ROLES.index(text)] if text in _ROLES else "viewer"


def _demand(member: ProjectMembership, role: Role) -> ProjectMembership:
    audit.note_project(member.project_id, member.project)
    if not has_role(member.role, role):
        raise Forbidden(
            f"You are {member.role} of project {member.project!r}; this needs the role {role}. "
            "Ask an admin of the project."
        )
    return member


def _find_member(session: Session, caller: Caller, condition: object) -> ProjectMembership | None:
    query = select(Project.id, Project.name, Membership.role)
    query = query.where(condition, Project.deleted_at.is_(None))  # type: ignore[arg-type]
    if caller.project_ids_limit is not None:
        query = query.where(Project.id.in_(caller.project_ids_limit))
    link = (Membership.project_id == Project.id) & (Membership.user_id == caller.user_id)
    row = session.execute(query.join(Membership, link, isouter=caller.is_admin)).one_or_none()
    if row is None:
        return None
    return ProjectMembership(row[0], row[1], "admin" if caller.is_admin else _role(row[2]))


# --- the token -------------------------------------------------------------------------------------------------------


# By the digest of their token, for a few seconds: most requests authenticate without a query.
CallerCache = ExpiringCache[Caller]


async def forget_callers(request: Request) -> AsyncIterator[None]:
    """A dependency of routers that change users, tokens or members: it clears the caller cache after each change."""
    yield
    if request.method not in _SAFE_METHODS:
        request.app.state.callers.clear()


def _presented_token(request: HTTPConnection) -> tuple[str, bool]:
    """The token, and whether it came as a cookie, which another site's page may have made the browser send."""
    header = request.headers.get("authorization")
    if header is not None:
        kind, _, token = header.partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Unauthenticated("Send the token as `Authorization: Bearer <token>`.")
        token = token.strip()
        if token.startswith(SESSION_PREFIX):
            raise Unauthenticated(_NO_BEARER)
        return token, False
    cookie = request.cookies.get(SESSION_COOKIE, "")
    if cookie.startswith(SESSION_PREFIX):
        return cookie, True
    raise Unauthenticated(
        "This needs a token: send `Authorization: Bearer <token>` (`trainmaster login` keeps one for you)."
    )


def refuse_foreign_page(request: Request) -> None:
    """CSRF protection: browsers send the cookie for any site's page; a change must come from this platform's pages."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    if site in ("same-origin", "none") or (
        site is None and origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    ):
        return
    raise Forbidden(
        "A change by session cookie must come from this platform's own pages; programs send a bearer token."
    )


async def authenticate(request: Request, context: AppContext) -> Caller:
    """The caller, from the cache or the database.

    Raises:
        Unauthenticated: the token is missing, unknown or revoked.
        TokenExpired: the token has expired.
    """
    token, is_cookie = _presented_token(request)
    if is_cookie and request.method not in _SAFE_METHODS:
        refuse_foreign_page(request)
    return await caller_of_token(request, context, token)


async def bearer_caller(connection: HTTPConnection, context: AppContext) -> Caller:
    """The caller of a connection by its bearer token; a cookie is refused, since any site can make a browser send it.

    Raises:
        Forbidden: the token lacks the scope read. Other errors as of ``authenticate``.
    """
    token, is_cookie = _presented_token(connection)
    if is_cookie:
        raise Unauthenticated("This needs a token: send `Authorization: Bearer <token>`.")
    found = await caller_of_token(connection, context, token)
    found.demand(Scope.READ)
    return found


async def caller_of_token(request: HTTPConnection, context: AppContext, token: str) -> Caller:
    """The caller that a token belongs to. Raises like ``authenticate``, and ``TooManyRequests`` where too many wrong
    tokens came from.
    """
    if token.startswith(ATTEMPT_PREFIX):
        raise Unauthenticated("This is an attempt's token, good only for reports of its replicas; use a user's token.")
    digest = token_digest(token)
    cache: CallerCache = request.app.state.callers
    now = context.clock()
    known = cache.get(digest, now)
    if known is not None:
        caller = known
    else:
        version = request.headers.get("trainmaster-client", "")[:_VERSION_LENGTH] or None
        try:
            async with fair_use_of(request).login_attempt(request):
                caller, expires_at = await run_in_threadpool(load_caller, context, digest, now, version)
        except (Unauthenticated, TooManyRequests):
            audit.note_wrong_token()
            raise
        until = now + CALLER_TTL
        cache.put(digest, caller, min(until, expires_at) if expires_at else until)
    audit.note_caller(caller.user, caller.user_id, caller.token_id)
    return replace(caller, resource=resource_of(request.scope["path"]))


def load_caller(
    context: AppContext, digest: str, now: datetime, client_version: str | None = None
) -> tuple[Caller, datetime | None]:
    """The caller by the digest of the token, and when it expires. Raises like ``authenticate``."""
    with context.read() as work:
        row = work.session.execute(
            select(Token, User).join(User, User.id == Token.user_id).where(Token.digest == digest)
        ).one_or_none()
        if row is None:
            raise Unauthenticated("This token is not known here; `trainmaster login` gets a new one.")
        token, user = row
        if token.revoked_at is not None:
            raise Unauthenticated("This token was revoked; `trainmaster login` gets a new one.")
        if user.disabled_at is not None:
            raise Unauthenticated("This user is disabled; ask an admin of the platform.")
        if token.expires_at is not None and token.expires_at <= now:
            raise TokenExpired("This token has expired; `trainmaster login` gets a new one.")
        limit = None if token.project_ids is None else frozenset(token.project_ids)
        if user.service_project_id is not None:
            limit = frozenset({user.service_project_id}) & (limit or {user.service_project_id})
        is_admin = user.is_admin and Scope.ADMIN in token.scopes and limit is None
        query = select(Project.id, Project.name, Membership.role).where(Project.deleted_at.is_(None))
        if limit is not None:
            query = query.where(Project.id.in_(limit))
        link = (Membership.project_id == Project.id) & (Membership.user_id == user.id)
        rows = work.session.execute(query.join(Membership, link, isouter=is_admin)).all()
    projects = {row[0]: ProjectMembership(row[0], row[1], "admin" if is_admin else _role(row[2])) for row in rows}
    if token.last_used_at is None or token.last_used_at < now - _LAST_USED_STEP:
        _note_use(context, token.id, now, client_version)
    is_service_account = user.service_project_id is not None
    scopes = frozenset(token.scopes) - (frozenset() if user.is_admin else {SCIM})
    caller = Caller(user.id, user.name, is_admin, scopes, token.id, projects, limit, is_service_account)
    return caller, token.expires_at


def _note_use(context: AppContext, token_id: str, now: datetime, client_version: str | None) -> None:
    values: dict[str, Any] = {"last_used_at": now}
    if client_version is not None:
        values["client_version"] = client_version
    try:
        with audit.recording(None), context.write() as work:
            work.session.execute(update(Token).where(Token.id == token_id).values(values))
    except TrainmasterError:
        pass  # the time of the last use helps to clean up tokens; it is not worth a failed request


# --- dependencies ----------------------------------------------------------------------------------------------------


def require(scope: Scope | Literal["read", "write", "admin"]) -> Callable[..., Awaitable[Caller]]:
    """A dependency: the caller, whose token has ``scope``. "admin" also asks for a platform admin."""
    wanted = Scope(scope)

    async def caller(request: Request, context: AppContextDep) -> Caller:
        found = await authenticate(request, context)
        if wanted is Scope.ADMIN and not found.is_admin:
            raise Forbidden("This needs a platform admin, with a token of scope admin.")
        found.demand(wanted)
        return found

    return caller


Reader = Annotated[Caller, Depends(require(Scope.READ))]
Writer = Annotated[Caller, Depends(require(Scope.WRITE))]
PlatformAdmin = Annotated[Caller, Depends(require(Scope.ADMIN))]


@dataclass(frozen=True, slots=True)
class ProjectAccess:
    """Access to one project with at least ``role``; ``load`` checks it."""

    caller: Caller
    name: str
    role: Role

    def load(self, session: Session) -> Project:
        """The project's row. Raises ``NotFound`` or ``Forbidden``."""
        member = self.caller.member_of(session, self.name, self.role)
        project = session.get(Project, member.project_id)
        if project is None or project.deleted_at is not None:
            raise NotFound(f"There is no project {self.name!r}.")
        return project


def project_of(role: Role) -> Callable[..., Awaitable[ProjectAccess]]:
    """A dependency for ``{project}`` routes; roles above viewer need a token of scope write."""
    authenticated = require(Scope.READ if role == "viewer" else Scope.WRITE)

    async def access(
        project: Annotated[str, Path(description="Name of the project.", max_length=100)],
        caller: Caller = Depends(authenticated),  # noqa: B008 (an annotation cannot see the local name)
    ) -> ProjectAccess:
        return ProjectAccess(caller, project, role)

    return access


@dataclass(frozen=True, slots=True)
class JobAccess:
    """Access to one job with at least ``role`` in its project; ``load`` checks it.

    ``ref``: the job's id, or its name: then the newest job of that name that the caller may see.
    """

    caller: Caller
    ref: str
    role: Role

    def load(self, session: Session) -> Job:
        """The job's row. Raises ``NotFound`` (unknown, deleted, or hidden from the caller) or ``Forbidden``."""
        return self.load_with_member(session)[0]

    def load_with_member(self, session: Session) -> tuple[Job, ProjectMembership]:
        """The job's row, and the caller's membership in its project."""
        what = f"job {self.ref!r} that you may see; `GET /api/v1/jobs` lists yours"
        job = session.execute(select(Job).where(Job.id == self.ref, Job.deleted_at.is_(None))).scalar_one_or_none()
        if job is None:
            named = self._newest(select(Job).where(Job.name == self.ref), 1)
            job = session.execute(named).scalar_one_or_none()
        if job is None:
            meant = suggest(self.ref, session.scalars(self._newest(select(Job.name), _SUGGESTION_LIMIT)))
            raise NotFound(f"There is no {what}. Did you mean {meant}?" if meant else f"There is no {what}.")
        audit.note_object("job", job.id)
        return job, self.caller.member_of_id(session, job.project_id, self.role, what=what)

    def _newest(self, query: Select[Any], limit: int) -> Select[Any]:
        """Of the jobs that the caller may see."""
        query = query.where(Job.deleted_at.is_(None))
        if not self.caller.is_admin:
            query = query.where(Job.project_id.in_(list(self.caller.projects)))
        return query.order_by(Job.created_at.desc(), Job.id.desc()).limit(limit)


_SUGGESTION_LIMIT: Final = 200  # newest job names that a misspelt name is compared with


def job_of(role: Role) -> Callable[..., Awaitable[JobAccess]]:
    """A dependency for ``{job}`` routes; roles above viewer need a token of scope write."""
    authenticated = require(Scope.READ if role == "viewer" else Scope.WRITE)

    async def access(
        job: Annotated[str, Path(description="The job's id, or its name: the newest of that name.", max_length=100)],
        caller: Caller = Depends(authenticated),  # noqa: B008 (an annotation cannot see the local name)
    ) -> JobAccess:
        return JobAccess(caller, job, role)

    return access


JobViewer = Annotated[JobAccess, Depends(job_of("viewer"))]
JobMember = Annotated[JobAccess, Depends(job_of("member"))]
ProjectViewer = Annotated[ProjectAccess, Depends(project_of("viewer"))]
ProjectMember = Annotated[ProjectAccess, Depends(project_of("member"))]
ProjectAdmin = Annotated[ProjectAccess, Depends(project_of("admin"))]


async def _attempt(request: Request, context: AppContextDep) -> AttemptId:
    token, _ = _presented_token(request)
    attempt_id = verify_attempt_token(context.key, token)
    if attempt_id is None:
        raise Unauthenticated("This is not the token of an attempt; replicas find theirs in TRAINMASTER_TOKEN_FILE.")
    audit.note_caller(f"attempt:{attempt_id}")
    return attempt_id


AttemptCaller = Annotated[AttemptId, Depends(_attempt)]
"""The attempt whose token came with the request."""


async def attempt_or_caller(request: Request, context: AppContext) -> AttemptId | Caller:
    """The attempt or the user whose token came with the request. Raises like ``authenticate``."""
    token, _ = _presented_token(request)
    attempt_id = verify_attempt_token(context.key, token)
    if attempt_id is None:
        return await authenticate(request, context)
    audit.note_caller(f"attempt:{attempt_id}")
    return attempt_id
