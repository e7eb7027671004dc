"""Users, projects, tokens, secrets, volumes and code archives."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Text,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base


class User(Base):
    """A person; or, if ``service_project_id`` is set, a service account of that project, named ``name@project``.

    It has rights in its project alone, and no login. Not a foreign key: SQLite cannot add one to a table.
    """

    __tablename__ = "users"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    is_admin: Mapped[bool] = mapped_column(Boolean, default=False)
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]
    service_project_id: Mapped[str | None] = mapped_column(index=True)


class UserIdentity(Base):
    """An identity of the user at an OpenID Connect provider, by which the user logs in."""

    __tablename__ = "user_identities"
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    issuer: Mapped[str] = mapped_column(Text)
    subject: Mapped[str]  # the issuer's stable id of the user; e-mail addresses and names may change owners
    provider: Mapped[str]  # its name in the settings at the last login
    email: Mapped[str | None] = mapped_column(Text)
    is_admin_source: Mapped[bool] = mapped_column(Boolean, default=False)  # whether its groups made the user an admin
    created_at: Mapped[datetime]
    last_login_at: Mapped[datetime | None]
    __table_args__ = (Index("uq_user_identities_subject", "issuer", "subject", unique=True),)


class ScimResource(Base):
    """A user or group that an identity provider provisions. ``key``: the lower-case user name or display name, unique
    in its kind. ``body``: the resource as SCIM writes it, of a group with its members. ``identity_id``: a user's.
    """

    __tablename__ = "scim_resources"
    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]  # User | Group
    key: Mapped[str]
    external_id: Mapped[str | None] = mapped_column(index=True)
    identity_id: Mapped[str | None] = mapped_column(index=True)
    body: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    __table_args__ = (Index("uq_scim_resources_key", "kind", "key", unique=True),)


class Token(Base):
    """A bearer token, of which only the SHA-256 is stored. ``parent_token_id``: the id of the token that created it, or
    that opened it as a browser session; it is revoked with that token. ``project_ids``: the projects that it is limited
    to; ``None``: it has all rights of its user.
    """

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    name: Mapped[str]
    digest: Mapped[str] = mapped_column(unique=True)
    scopes: Mapped[list[Any]]  # of trainmaster.wire.admin.SCOPES
    project_ids: Mapped[list[Any] | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    parent_token_id: Mapped[str | None] = mapped_column(index=True)
    client_version: Mapped[str | None]  # of the SDK or command line that used it last


class LoginCode(Base):
    """A one-time code, exchanged once for a token. ``parent_token_id``: of the token that created it."""

    __tablename__ = "login_codes"
    digest: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    parent_token_id: Mapped[str | None]


class Project(Base):
    __tablename__ = "projects"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    description: Mapped[str] = mapped_column(Text, default="")
    weight: Mapped[float] = mapped_column(Float, default=1.0)
    quota: Mapped[dict[str, Any]] = mapped_column(default=dict)  # format: core.domain.sharing.quota
    max_priority: Mapped[int | None] = mapped_column(Integer)  # the largest priority of its jobs
    # Its jobs' user id is so much above the first of the range; from the first job on, see core.job_users.
    uid_offset: Mapped[int | None] = mapped_column(Integer, unique=True)
    retention: Mapped[dict[str, Any] | None]  # format: core.domain.sharing.retention; null: all is kept
    created_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]


class Membership(Base):
    """``identity_id``: of the identity whose groups gave the role; ``None``: an admin did. Not a foreign key: SQLite
    cannot add one to a table.
    """

    __tablename__ = "memberships"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    role: Mapped[str]  # viewer | member | admin
    identity_id: Mapped[str | None]


class Secret(Base):
    """A project secret, encrypted with the platform's key."""

    __tablename__ = "secrets"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    ciphertext: Mapped[bytes] = mapped_column(LargeBinary)
    updated_at: Mapped[datetime]


class Volume(Base):
    """Storage registered by an admin. ``config``: how containers mount it; ``root``: its path on the control plane."""

    __tablename__ = "volumes"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]  # local | nfs | pvc | csi
    root: Mapped[str | None] = mapped_column(Text)
    config: Mapped[dict[str, Any]] = mapped_column(default=dict)
    is_read_only: Mapped[bool] = mapped_column(Boolean, default=False)
    created_at: Mapped[datetime]


class VolumeGrant(Base):
    """Access to a volume, or to its folder ``prefix``, of a project, or of the members of all projects
    (``project_id``: ``None``). No row concerns the volume of the projects' own folders.
    """

    __tablename__ = "volume_grants"
    id: Mapped[str] = mapped_column(primary_key=True)
    volume_id: Mapped[str] = mapped_column(ForeignKey("volumes.id", ondelete="CASCADE"))
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"), index=True)
    prefix: Mapped[str] = mapped_column(Text, default="")  # normalized; empty: the whole volume
    access: Mapped[str]  # read | write
    __table_args__ = (
        Index("uq_volume_grants_project", "volume_id", "project_id", "prefix", unique=True),
        # Two NULLs are different in a unique index.
        Index(
            "uq_volume_grants_everyone", "volume_id", "prefix", unique=True,
            sqlite_where=text("project_id IS NULL"), postgresql_where=text("project_id IS NULL"),
        ),
    )  # fmt: skip


class Archive(Base):
    """A code archive (.tar.gz), named by its digest. ``received_bytes`` < ``size_bytes`` during the upload.

    ``project_id``: the project whose storage it counts against, next to those of the jobs that use it.
    """

    __tablename__ = "archives"
    digest: Mapped[str] = mapped_column(primary_key=True)  # "sha256:<hex>"
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    received_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    is_complete: Mapped[bool] = mapped_column(Boolean, default=False)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"), index=True)
    created_at: Mapped[datetime]
    used_at: Mapped[datetime]


class StorageUsage(Base):
    """A project's disk usage, as last measured. ``parts``: bytes by ``core.domain.sharing.storage.StorageKind``;
    ``used_bytes``: their sum. ``added_bytes``: written by API uploads since that measurement began. ``level``: last
    announced to running jobs, in percent. ``unreadable``: folders that the platform may not read.
    """

    __tablename__ = "storage_usages"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    parts: Mapped[dict[str, Any]] = mapped_column(default=dict)
    used_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    added_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    unreadable: Mapped[int] = mapped_column(Integer, default=0)
    level: Mapped[int] = mapped_column(Integer, default=0)
    duration_s: Mapped[float] = mapped_column(Float, default=0.0)  # of the last measurement
    measured_at: Mapped[datetime | None]
    due_at: Mapped[datetime] = mapped_column(index=True)  # of the next measurement
