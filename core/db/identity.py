"""Which database this is: a random id that stands on everything which is made on an engine in its name.

By it a sweep tells what this database has forgotten from what is another's, as after the platform was started with an
empty database. A backup has the id of what it was made of, so a restored database knows its own; two copies that live at
once need different values of ``TRAINMASTER_INSTANCE``.
"""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Identity

_DATABASE: Final = "database"
_BYTES: Final = 8  # as a label: 16 characters


def find_id(session: Session) -> str | None:
    """The id; ``None`` when somebody has emptied the tables since they were made."""
    return session.execute(select(Identity.id).where(Identity.name == _DATABASE)).scalar_one_or_none()


def ensure_id(sessions: SessionFactory) -> str:
    """The id, made now where there is none. Opens sessions of its own."""
    with unit_of_work(sessions, read_only=True) as session:
        found = find_id(session)
    if found is not None:
        return found
    with unit_of_work(sessions) as session:
        try:
            with session.begin_nested():
                session.add(Identity(name=_DATABASE, id=secrets.token_hex(_BYTES)))
        except IntegrityError:
            pass  # somebody else made it in the same moment
        return session.execute(select(Identity.id).where(Identity.name == _DATABASE)).scalar_one()
