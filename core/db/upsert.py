"""INSERT … ON CONFLICT for both databases, which SQLAlchemy implements in two classes."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session


def insert_into(session: Session, entity: Any) -> Any:
    """An insert with ``on_conflict_do_update`` and ``on_conflict_do_nothing`` of the session's own dialect."""
    return (postgresql if session.get_bind().dialect.name == "postgresql" else sqlite).insert(entity)
