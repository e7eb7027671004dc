"""Users, memberships and administrators by the identities that log in; no network.

An identity is the pair of issuer and subject, never an e-mail address or a name, which providers may give to another
person. A new identity gets a new user; only a platform admin links it to a user who exists.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import structlog
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError

from api.app.unit_of_work import UnitOfWork
from api.oidc.id_tokens import LoginClaims
from api.oidc.providers import OidcProvider, ProjectRole
from core.db.tables import Membership, Project, ScimResource, User, UserIdentity
from core.domain.errors import Conflict, Unauthenticated
from core.ids import new_id

log = structlog.get_logger(__name__)

_NAME_LENGTH: Final = 63  # of the platform's names
_NUMBERED_NAMES: Final = 100


def provision(work: UnitOfWork, provider: OidcProvider, claims: LoginClaims) -> User:
    """The user of the identity, created at its first login, with the memberships and rights of its groups.

    Adds, changes and removes only memberships that the same identity gave, and takes only an admin's rights away that
    it gave. The last platform admin stays one.

    Raises:
        Unauthenticated: the user is disabled.
    """
    identity = ensure_identity(work, provider, claims)
    # The lock serialises logins of one user.
    user = work.session.execute(select(User).where(User.id == identity.user_id).with_for_update()).scalar_one()
    if user.disabled_at is not None:
        raise Unauthenticated("This user is disabled; ask an admin of the platform.")
    identity.provider = provider.name
    identity.email = claims.email
    identity.last_login_at = work.now
    apply_groups(work, provider, identity, user, _groups_of(work, provider, identity, claims))
    return user


def ensure_identity(work: UnitOfWork, provider: OidcProvider, claims: LoginClaims) -> UserIdentity:
    """The identity, with a new user if it is new."""
    return find_identity(work, claims) or _create(work, provider, claims)


def apply_groups(
    work: UnitOfWork, provider: OidcProvider, identity: UserIdentity, user: User, groups: Collection[str]
) -> None:
    """Give the user what the groups give, and take what the identity gave and they do not."""
    _set_memberships(work, provider, identity, user, provider.roles_of(groups))
    if provider.has_admin_groups or identity.is_admin_source:
        _set_admin(work, provider, identity, user, is_admin=provider.grants_admin(groups))
    work.session.flush()


def groups_by_scim(groups: Iterable[Mapping[str, Any]], user_id: str) -> set[str]:
    """Display names and external ids of the SCIM groups that have the user as a member."""
    return {
        str(name)
        for group in groups
        if any(member["value"] == user_id for member in group.get("members") or ())
        for name in (group.get("displayName"), group.get("externalId"))
        if name
    }


def _groups_of(
    work: UnitOfWork, provider: OidcProvider, identity: UserIdentity, claims: LoginClaims
) -> Collection[str]:
    """Those that the provider provisions; of a user that it does not provision, those of the login."""
    provisioned = select(ScimResource.id).where(ScimResource.identity_id == identity.id)
    if not provider.scim or work.session.execute(provisioned).first() is None:
        return claims.groups
    bodies = work.session.scalars(select(ScimResource.body).where(ScimResource.kind == "Group"))
    return groups_by_scim(bodies, identity.user_id)


def link(work: UnitOfWork, provider: OidcProvider, subject: str, user: User) -> UserIdentity:
    """Let the identity log in as ``user``, who had another login before; called for a platform admin.

    An identity of another user moves, and what it gave that user ends.
    """
    row = work.session.execute(
        select(UserIdentity)
        .where(UserIdentity.issuer == provider.issuer, UserIdentity.subject == subject)
        .with_for_update()
    ).scalar_one_or_none()
    if row is None:
        row = UserIdentity(
            id=new_id("identity"), user_id=user.id, issuer=provider.issuer, subject=subject, provider=provider.name,
            is_admin_source=False, created_at=work.now,
        )  # fmt: skip
        work.add_unique(row, "This identity was linked at the same moment; look at it, and try again.")
    elif row.user_id != user.id:
        revoke_grants(work, row)
        row.user_id = user.id
        work.session.flush()
    return row


def revoke_grants(work: UnitOfWork, identity: UserIdentity) -> None:
    """End the memberships and the admin's rights that the identity gave its user. Raises ``Conflict``: last admin."""
    work.session.execute(delete(Membership).where(Membership.identity_id == identity.id))
    if identity.is_admin_source:
        user = work.session.execute(select(User).where(User.id == identity.user_id)).scalar_one()
        if is_last_admin(work, user):
            raise Conflict(f"{user.name} is the last platform admin; make another user admin first.")
        user.is_admin = False
        identity.is_admin_source = False


def find_identity(work: UnitOfWork, claims: LoginClaims) -> UserIdentity | None:
    """The identity if it has logged in before, or an admin has linked it."""
    query = select(UserIdentity).where(UserIdentity.issuer == claims.issuer, UserIdentity.subject == claims.subject)
    return work.session.execute(query).scalar_one_or_none()


def _create(work: UnitOfWork, provider: OidcProvider, claims: LoginClaims) -> UserIdentity:
    """A new user with the identity; the identity of another request that created it at the same moment."""
    for name in free_names(work, claims):
        user = User(id=new_id("user"), name=name, is_admin=False, created_at=work.now)
        identity = UserIdentity(
            id=new_id("identity"), user_id=user.id, issuer=claims.issuer, subject=claims.subject,
            provider=provider.name, is_admin_source=False, created_at=work.now,
        )  # fmt: skip
        try:
            with work.session.begin_nested():
                work.session.add(user)
                work.session.flush()
                work.session.add(identity)
        except IntegrityError:
            other = find_identity(work, claims)
            if other is not None:
                return other
            continue  # the name was taken at the same moment
        data = {"user": name, "is_admin": False, "issuer": claims.issuer, "subject": claims.subject}
        work.record_event("user.created", _actor(provider), data=data)
        return identity
    raise Conflict("No name for a new user is free; an admin creates the user and links the identity.")


def free_names(work: UnitOfWork, claims: LoginClaims) -> Iterator[str]:
    """Valid names that no user has: the wanted one, else with a number, else with random digits."""
    wanted = [re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") for name in claims.names]
    base = next((name for name in wanted if name), "user")[: _NAME_LENGTH - 9].strip("-")
    taken = set(work.session.scalars(select(User.name).where(User.name.startswith(base, autoescape=True))))
    numbered = (f"{base}-{number}" for number in range(2, _NUMBERED_NAMES))
    yield from (name for name in (base, *numbered) if name not in taken)
    yield f"{base}-{secrets.token_hex(4)}"


def _set_memberships(
    work: UnitOfWork, provider: OidcProvider, identity: UserIdentity, user: User, roles: dict[str, ProjectRole]
) -> None:
    names = {project.id: project.name for project in _projects(work, provider, roles)}
    wanted = {project_id: roles[name] for project_id, name in names.items()}
    rows = work.session.execute(select(Membership).where(Membership.user_id == user.id)).scalars().all()
    for row in rows:
        if row.identity_id != identity.id:
            wanted.pop(row.project_id, None)  # what an admin or another identity gave stays as it is
            continue
        role = wanted.pop(row.project_id, None)
        if role is None:
            work.session.delete(row)
            _record(work, provider, "project.member_removed", row.project_id, user=user.name)
        elif role != row.role:
            row.role = role
            _record(work, provider, "project.member_set", row.project_id, user=user.name, role=role)
    for project_id, role in wanted.items():
        work.session.add(Membership(project_id=project_id, user_id=user.id, role=role, identity_id=identity.id))
        _record(work, provider, "project.member_set", project_id, user=user.name, role=role)


def _projects(work: UnitOfWork, provider: OidcProvider, roles: dict[str, ProjectRole]) -> list[Project]:
    query = select(Project).where(Project.name.in_(list(roles)), Project.deleted_at.is_(None))
    projects = list(work.session.scalars(query))
    missing = sorted(roles.keys() - {project.name for project in projects})
    if missing:
        log.warning("oidc.project_missing", provider=provider.name, projects=missing)
    return projects


def _set_admin(work: UnitOfWork, provider: OidcProvider, identity: UserIdentity, user: User, *, is_admin: bool) -> None:
    if is_admin and not user.is_admin:
        user.is_admin = True
        identity.is_admin_source = True
    elif not is_admin and identity.is_admin_source:
        if user.is_admin and is_last_admin(work, user):
            log.warning("oidc.last_admin_stays", provider=provider.name, user=user.name)
            return
        user.is_admin = False
        identity.is_admin_source = False
    else:
        return
    work.record_event("user.changed", _actor(provider), data={"user": user.name, "is_admin": is_admin})


def is_last_admin(work: UnitOfWork, user: User) -> bool:
    """Locks all admins, in the order in which ``api.users`` does."""
    query = select(User.id).where(User.is_admin, User.disabled_at.is_(None)).order_by(User.id).with_for_update()
    return set(work.session.scalars(query)) == {user.id}


def _record(work: UnitOfWork, provider: OidcProvider, kind: str, project_id: str, **data: object) -> None:
    work.record_event(kind, _actor(provider), project_id=project_id, data=data)


def _actor(provider: OidcProvider) -> str:
    """The name of the provider in events."""
    return f"provider:{provider.name}"
