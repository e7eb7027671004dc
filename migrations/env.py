"""Alembic's environment: one history for PostgreSQL and SQLite.

``migrations.upgrade`` hands over a connection; the ``alembic`` command makes one from the settings.
"""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection, Integer
from sqlalchemy.dialects.postgresql import JSONB

from core.db.engine import make_engine
from core.db.tables import Base, BigId, Json, UtcDateTime
from core.settings import get_settings


def _render_type(kind: str, value: Any, _context: AutogenContext) -> str | Literal[False]:
    """Own column types by their database meaning: ``versions/`` must not import ``core``, which moves on."""
    if kind != "type":
        return False
    if isinstance(value, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    # Alembic has no other API for it.
    variants = {name: type(variant) for name, variant in value._variant_mapping.items()}  # noqa: SLF001
    if isinstance(value, type(Json)) and variants == {"postgresql": JSONB}:
        return "json_type"
    if isinstance(value, type(BigId)) and variants == {"sqlite": Integer}:
        return "big_id"
    return False


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",  # SQLite alters a table by writing it anew
        render_item=_render_type,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


configured = context.config.attributes.get("connection")
if configured is not None:
    _run(configured)
else:
    with make_engine(get_settings().resolved_database_url).connect() as made:
        _run(made)
        made.commit()
