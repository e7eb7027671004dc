"""The database's identity: a random id that labels everything created on an engine on behalf of this database.

Garbage collection uses it to tell objects that this database has forgotten from objects of another database, for
instance after the platform was started with an empty database. A restored backup keeps the id of the original and so
recognizes its objects; two copies that run at once need different values of ``TRAINMASTER_INSTANCE``.
"""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import DatabaseIdentity

_DATABASE: Final = "database"
_BYTES: Final = 8  # as a label: 16 characters


def find_id(session: Session) -> str | None:
    """The id; ``None`` if the tables were emptied after their creation."""
    return session.execute(select(DatabaseIdentity.id).where(DatabaseIdentity.name == _DATABASE)).scalar_one_or_none()


def ensure_id(sessions: SessionFactory) -> str:
    """The id, created if missing. Opens sessions of its own."""
    with unit_of_work(sessions, read_only=True) as session:
        found = find_id(session)
    if found is not None:
        return found
    with unit_of_work(sessions) as session:
        try:
            with session.begin_nested():
                session.add(DatabaseIdentity(name=_DATABASE, id=secrets.token_hex(_BYTES)))
        except IntegrityError:
            pass  # another process created it at the same moment
        return session.execute(select(DatabaseIdentity.id).where(DatabaseIdentity.name == _DATABASE)).scalar_one()
