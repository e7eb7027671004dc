"""The first start, and the database's identity.

The first start creates an admin, a project and two volumes, so that the first job can be submitted at once.

The identity is a random id that labels everything created on an engine on behalf of this database. Garbage collection
uses it to tell objects that this database has forgotten from objects of another database, for instance after the
platform was started with an empty database. A restored backup keeps the id of the original and so recognizes its
objects; two copies that run at once need different values of ``TRAINMASTER_INSTANCE``.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from sqlalchemy import or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import DatabaseIdentity, LoginCode, Membership, Project, Token, User, Volume, VolumeGrant
from core.ids import new_id
from core.settings import FIRST_FOLDERS, BadSettings, Settings
from core.tokens import new_login_code, new_user_token, token_digest, write_private

ADMIN: Final = "admin"
PROJECT: Final = "default"
DATA_VOLUME: Final = "data"
_ALL_SCOPES: Final = ("read", "write", "admin")
LOGIN_CODE_TTL: Final = timedelta(hours=1)
_GIVEN_TOKEN: Final = re.compile(r"tm_[A-Za-z0-9_-]{32,200}")
_DATABASE: Final = "database"
_BYTES: Final = 8  # as a label: 16 characters


class FirstVolume(BaseModel):
    """A volume as an administrator would register it; ``root``: its path on the control plane. ``everyone``: what
    members of all projects may do there; without it only administrators use the volume until they grant it.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1)
    kind: Literal["local", "nfs", "pvc", "csi"]
    root: str | None = Field(default=None, pattern="^/")
    config: dict[str, Any] = Field(default_factory=dict)
    everyone: Literal["read", "write"] | None = None


class BadTokenFile(Exception):
    """The token file holds something that is no token; the text says what to write."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """``admin_token`` is ``None`` when the token in the token file is still valid."""

    user_id: str
    admin_token: str | None


def bootstrap(session: Session, settings: Settings, now: datetime) -> Bootstrap:
    """Create what is missing: user ``admin``, project ``default``, the volumes, and a token for the local CLI.

    Idempotent, so every start may call it; existing rows are left as they are. Does not commit and does not write the
    token file: the caller does so after the commit (see ``prepare_home``).
    """
    admin_id = _make_missing(session, settings, now)
    stored_token = read_token(settings)
    if stored_token is not None and _is_good(session, stored_token, now):
        return Bootstrap(admin_id, None)
    token = add_token(session, user_id=admin_id, name="first start", scopes=_ALL_SCOPES, now=now)
    return Bootstrap(admin_id, token)


def first_admin(session: Session, settings: Settings, now: datetime, *, is_new_token: bool) -> str | None:
    """Like :func:`bootstrap`, without a supervisor and its token file: a token of ``admin`` to print for the installer.

    ``None`` if a platform admin already has a valid token of scope admin, unless ``is_new_token``.
    """
    admin_id = _make_missing(session, settings, now)
    query = (
        select(Token.scopes)
        .join(User, User.id == Token.user_id)
        .where(
            User.is_admin,
            User.disabled_at.is_(None),
            Token.revoked_at.is_(None),
            or_(Token.expires_at.is_(None), Token.expires_at > now),
        )
    )
    if not is_new_token and any("admin" in scopes for scopes in session.execute(query).scalars()):
        return None
    return add_token(session, user_id=admin_id, name="first admin", scopes=_ALL_SCOPES, now=now)


def _keep_admin_token(session: Session, settings: Settings, now: datetime, token: str) -> bool:
    """Like :func:`bootstrap`, with a token that the installation chose: register ``token`` for user ``admin``.

    False if the token is known already, valid or not: a restart does not revive a revoked token.
    """
    admin_id = _make_missing(session, settings, now)
    if session.execute(select(Token.id).where(Token.digest == token_digest(token))).first() is not None:
        return False
    add_token(session, user_id=admin_id, name="installation", scopes=_ALL_SCOPES, now=now, token=token)
    return True


def _make_missing(session: Session, settings: Settings, now: datetime) -> str:
    """Create the missing user, project and volumes; returns the id of the user ``admin``."""
    admin = session.execute(select(User).where(User.name == ADMIN)).scalar_one_or_none()
    if admin is None:
        admin = User(id=new_id("user"), name=ADMIN, is_admin=True, created_at=now)
        session.add(admin)
        session.flush()
    project_id = session.execute(select(Project.id).where(Project.name == PROJECT)).scalar_one_or_none()
    if project_id is None:
        project_id = new_id("project")
        session.add(Project(id=project_id, name=PROJECT, description="The first project.", created_at=now))
        session.flush()
        session.add(Membership(project_id=project_id, user_id=admin.id, role="admin"))
    for first in read_first_volumes(settings):
        if session.execute(select(Volume.id).where(Volume.name == first.name)).scalar_one_or_none() is None:
            volume = Volume(id=new_id("volume"), created_at=now, **first.model_dump(exclude={"everyone"}))
            session.add(volume)
            session.flush()
            # The first job can use it at once.
            access = first.everyone or ("write" if first.name == DATA_VOLUME else None)
            if access is not None and first.name != settings.default_volume:
                session.add(VolumeGrant(id=new_id("grant"), volume_id=volume.id, access=access))
    return admin.id


def read_first_volumes(settings: Settings) -> list[FirstVolume]:
    """Those of ``TRAINMASTER_FIRST_VOLUMES``, else folders under home. Raises ``BadSettings``."""
    if settings.first_volumes:
        try:
            return TypeAdapter(list[FirstVolume]).validate_json(settings.first_volumes)
        except ValidationError as error:
            raise BadSettings(
                "TRAINMASTER_FIRST_VOLUMES cannot be used: write a JSON list such as "
                '[{"name": "output", "kind": "nfs", "root": "/mnt/output", '
                '"config": {"server": "nas", "path": "/output"}}].'
            ) from error
    folders = zip((settings.default_volume, DATA_VOLUME), FIRST_FOLDERS, strict=True)
    return [FirstVolume(name=name, kind="local", root=str((settings.home / f).resolve())) for name, f in folders]


def add_token(
    session: Session,
    *,
    user_id: str,
    name: str,
    scopes: Sequence[str],
    now: datetime,
    ttl: timedelta | None = None,
    token: str | None = None,
    parent_token_id: str | None = None,
    project_ids: Sequence[str] | None = None,
) -> str:
    """Create a token of the user and return it; it cannot be read again later. ``token``: a token chosen by the caller.
    ``parent_token_id``: the token that it was created with. ``project_ids``: what it is limited to.
    """
    token = token or new_user_token()
    session.add(
        Token(
            id=new_id("token"),
            user_id=user_id,
            name=name,
            digest=token_digest(token),
            scopes=list(scopes),
            project_ids=None if project_ids is None else list(project_ids),
            created_at=now,
            expires_at=now + ttl if ttl else None,
            parent_token_id=parent_token_id,
        )
    )
    session.flush()
    return token


def add_login_code(session: Session, user_id: str, *, now: datetime, parent_token_id: str | None = None) -> str:
    """A one-time code for ``<api url>/login?code=…``, valid for ``LOGIN_CODE_TTL``."""
    code = new_login_code()
    expires_at = now + LOGIN_CODE_TTL
    session.add(
        LoginCode(digest=token_digest(code), user_id=user_id, expires_at=expires_at, parent_token_id=parent_token_id)
    )
    session.flush()
    return code


def prepare_home(sessions: SessionFactory, settings: Settings, now: datetime) -> str:
    """Bootstrap, write the admin's token to ``<home>/token``, make the folders, and return a one-time login link."""
    _make_own_folders(settings)
    with unit_of_work(sessions) as session:
        made = bootstrap(session, settings, now)
        code = add_login_code(session, made.user_id, now=now)
        roots = _roots(session)
    # After the commit: a crash in between leaves an unknown token, and the next start creates another one.
    if made.admin_token is not None:
        write_private(token_path(settings), made.admin_token)
    _make_volume_folders(roots, settings)
    return f"{settings.api_url.rstrip('/')}/login?code={code}"


def prepare_installation(sessions: SessionFactory, settings: Settings, now: datetime, token_file: Path) -> bool:
    """Prepare rows, folders and the admin's token in ``token_file``; installers call it at every install and upgrade.

    An existing file gives the token; otherwise a token is generated and written to it.

    Returns:
        Whether the token is new to the database.

    Raises:
        BadTokenFile: the file holds no token.
    """
    _make_own_folders(settings)
    try:
        token = token_file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        token = new_user_token()
        token_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(token_file, token)
    if not _GIVEN_TOKEN.fullmatch(token):
        raise BadTokenFile(f"{token_file} holds no token: write `tm_` and 32 or more letters and digits into it.")
    with unit_of_work(sessions) as session:
        is_new = _keep_admin_token(session, settings, now, token)
        roots = _roots(session)
    _make_volume_folders(roots, settings)
    return is_new


def _make_own_folders(settings: Settings) -> None:
    for folder in (settings.home, settings.run_dir, settings.archive_dir):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _roots(session: Session) -> Sequence[str | None]:
    return session.execute(select(Volume.root)).scalars().all()


def _make_volume_folders(roots: Sequence[str | None], settings: Settings) -> None:
    """Create the folders of the first volumes; other volumes are their administrators' responsibility."""
    for root in roots:
        if root is not None and Path(root).is_relative_to(settings.home.resolve()):
            Path(root).mkdir(parents=True, exist_ok=True)


def token_path(settings: Settings) -> Path:
    return settings.home / "token"


def read_token(settings: Settings) -> str | None:
    """The token of the local CLI, or ``None`` before the first start."""
    try:
        return token_path(settings).read_text().strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_good(session: Session, token: str, now: datetime) -> bool:
    found = session.execute(
        select(Token.id)
        .join(User, User.id == Token.user_id)
        .where(
            Token.digest == token_digest(token),
            Token.revoked_at.is_(None),
            or_(Token.expires_at.is_(None), Token.expires_at > now),
            User.disabled_at.is_(None),
        )
    ).scalar_one_or_none()
    return found is not None


def find_database_id(session: Session) -> str | None:
    """The id; ``None`` if the tables were emptied after their creation."""
    return session.execute(select(DatabaseIdentity.id).where(DatabaseIdentity.name == _DATABASE)).scalar_one_or_none()


def ensure_database_id(sessions: SessionFactory) -> str:
    """The id, created if missing. Opens sessions of its own."""
    with unit_of_work(sessions, read_only=True) as session:
        found = find_database_id(session)
    if found is not None:
        return found
    with unit_of_work(sessions) as session:
        try:
            with session.begin_nested():
                session.add(DatabaseIdentity(name=_DATABASE, id=secrets.token_hex(_BYTES)))
        except IntegrityError:
            pass  # another process created it at the same moment
        return session.execute(select(DatabaseIdentity.id).where(DatabaseIdentity.name == _DATABASE)).scalar_one()
