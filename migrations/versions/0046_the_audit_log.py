"""The audit log, which triggers keep append-only.

Revision ID: 0046
Revises: 0045

An entry's content never changes. Its place in the hash chain is set once. It is deleted only up to the position that a
later entry records as cut by retention.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)
_TEXTS = ("action", "method", "route", "user", "address", "object_kind", "object_id", "outcome", "request_id")
_OPTIONAL_TEXTS = ("user_id", "token_id", "project_id", "project", "code")
_CONTENT = ", ".join(
    f'"{name}"' for name in ("id", "at", *_TEXTS, *_OPTIONAL_TEXTS, "status", "repeats", "changes")
)
_MESSAGE = "the audit log is append-only"
_IS_CUT = (
    "EXISTS (SELECT 1 FROM audit_entries AS cut WHERE cut.action = 'cut_audit_log' "
    "AND CAST(cut.object_id AS BIGINT) >= OLD.position)"
)
# Name -> when.
_UPDATES = {
    "audit_entries_content": f"BEFORE UPDATE OF {_CONTENT} ON audit_entries FOR EACH ROW",
    "audit_entries_chain": "BEFORE UPDATE OF position, previous_hash, hash ON audit_entries FOR EACH ROW "
    "WHEN (OLD.position IS NOT NULL)",
}
_DELETE = "audit_entries_deletion"


def upgrade() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in _TEXTS),
        *(sa.Column(name, sa.String(), nullable=True) for name in _OPTIONAL_TEXTS),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("changes", _JSON, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=True),
        sa.Column("previous_hash", sa.String(), nullable=True),
        sa.Column("hash", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
        sa.UniqueConstraint("position", name=op.f("uq_audit_entries_position")),
    )
    for column in ("user", "object_id", "project_id"):
        op.create_index(f"ix_audit_entries_{column}", "audit_entries", [column, "id"])
    for name, condition in (("unchained", "position IS NULL"), ("cut", "action = 'cut_audit_log'")):
        where = sa.text(condition)
        op.create_index(
            f"ix_audit_entries_{name}", "audit_entries", ["id"], sqlite_where=where, postgresql_where=where
        )
    if op.get_bind().dialect.name == "postgresql":
        _add_postgresql_triggers()
    else:
        _add_sqlite_triggers()


def _add_postgresql_triggers() -> None:
    op.execute(
        "CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE EXCEPTION '{_MESSAGE}' USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    op.execute(
        "CREATE FUNCTION refuse_audit_deletion() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF {_IS_CUT} THEN RETURN OLD; END IF; "
        f"RAISE EXCEPTION '{_MESSAGE}' USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    for name, when in _UPDATES.items():
        op.execute(f"CREATE TRIGGER {name} {when} EXECUTE FUNCTION refuse_audit_change()")
    op.execute(
        "CREATE TRIGGER audit_entries_truncation BEFORE TRUNCATE ON audit_entries "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
    )
    op.execute(
        f"CREATE TRIGGER {_DELETE} BEFORE DELETE ON audit_entries "
        "FOR EACH ROW EXECUTE FUNCTION refuse_audit_deletion()"
    )


def _add_sqlite_triggers() -> None:
    refusal = f"BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"
    for name, when in _UPDATES.items():
        op.execute(f"CREATE TRIGGER {name} {when} {refusal}")
    op.execute(
        f"CREATE TRIGGER {_DELETE} BEFORE DELETE ON audit_entries FOR EACH ROW "
        f"WHEN NOT coalesce({_IS_CUT}, 0) {refusal}"
    )


def downgrade() -> None:
    op.drop_table("audit_entries")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_audit_change(); DROP FUNCTION refuse_audit_deletion()")
