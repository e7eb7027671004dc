"""Tables and columns have the names that schedulers, Kubernetes and MLflow use for the same things.

Revision ID: 0034
Revises: 0033

Both databases rename columns with the same statement, and their indexes follow:
https://www.postgresql.org/docs/current/sql-altertable.html, https://www.sqlite.org/lang_altertable.html#altertabrename.
Tables whose own name or foreign key changes are created under the new name and copied, because SQLite cannot rename a
constraint; they are small.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)

# table -> {old name: new name}
_COLUMNS = {
    "attempts": {"is_counted": "counts_as_restart"},
    "deployment_revisions": {"verdict": "failure_reason"},
    "deployments": {"wanted": "target_revision", "stable": "stable_revision"},
    "jobs": {
        "wanted": "desired_state",
        "room_since": "preempting_since",
        "waits_since": "waiting_since",
        "preempted": "preemption",
    },
    "model_changes": {"what": "kind"},
    "model_versions": {"wanted": "registration", "tries": "copy_attempts"},
    "plan_records": {"after_id": "previous_id"},
    "questions": {"ask": "arguments", "asked_at": "created_at"},
    "replicas": {"leaves": "removal"},
    "secrets": {"sealed": "ciphertext"},
    "serving_replicas": {"misses": "failed_probes", "words": "message", "runs_since": "running_since"},
    "studies": {
        "proposed": "proposed_count",
        "prepared": "prefetched_points",
        "prepared_at": "prefetched_after",
        "known": "prior_trials",
        "winner": "best_trial",
    },
    "tokens": {"opened_by": "parent_token_id"},
    "trials": {"heard_at": "heartbeat_at"},
    "vertex_resources": {"deletion_asked_at": "deletion_requested_at"},
}
# Indexes whose name says the column: table -> (old name, new name)
_INDEXES = {
    "questions": ("asked_at", "created_at"),
    "tokens": ("opened_by", "parent_token_id"),
}


def upgrade() -> None:
    for table, (old, new) in _INDEXES.items():
        op.drop_index(op.f(f"ix_{table}_{old}"), table)
        _rename(table, {old: new})
        op.create_index(op.f(f"ix_{table}_{new}"), table, [new])
    for table, columns in _COLUMNS.items():
        _rename(table, {old: new for old, new in columns.items() if old != _INDEXES.get(table, ("",))[0]})
    _rename_event_index("ix_events_of_no_job", "ix_events_without_job")
    _move_orphans("strangers", "orphans", "since", "found_at")
    _move_pinned_checkpoints("kept_checkpoints", "pinned_checkpoints")
    _move_forecasts("outlooks", "start_forecasts")
    _move_registered_models("mlflow_registered", "mlflow_registered_models")
    _move_vertex_links(("above_id", "below_id"), ("parent_id", "child_id"))


def downgrade() -> None:
    _move_vertex_links(("parent_id", "child_id"), ("above_id", "below_id"))
    _move_registered_models("mlflow_registered_models", "mlflow_registered")
    _move_forecasts("start_forecasts", "outlooks")
    _move_pinned_checkpoints("pinned_checkpoints", "kept_checkpoints")
    _move_orphans("orphans", "strangers", "found_at", "since")
    _rename_event_index("ix_events_without_job", "ix_events_of_no_job")
    for table, (old, new) in _INDEXES.items():
        op.drop_index(op.f(f"ix_{table}_{new}"), table)
        _rename(table, {new: old})
        op.create_index(op.f(f"ix_{table}_{old}"), table, [old])
    for table, columns in _COLUMNS.items():
        _rename(table, {new: old for old, new in columns.items() if old != _INDEXES.get(table, ("",))[0]})


def _rename(table: str, columns: dict[str, str]) -> None:
    for old, new in columns.items():
        op.execute(sa.text(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}"))


def _rename_event_index(old: str, new: str) -> None:
    where = sa.text("job_id IS NULL")
    op.drop_index(old, "events")
    op.create_index(new, "events", ["project_id", "id"], sqlite_where=where, postgresql_where=where)


def _copy_rows(old: str, new: str, columns: dict[str, str]) -> None:
    """``columns``: new name -> old name."""
    names, sources = ", ".join(columns), ", ".join(columns.values())
    op.execute(sa.text(f"INSERT INTO {new} ({names}) SELECT {sources} FROM {old}"))  # noqa: S608 (constants)


def _copy(old: str, new: str, columns: dict[str, str]) -> None:
    """Copy all rows and drop the old table."""
    _copy_rows(old, new, columns)
    op.drop_table(old)


def _move_orphans(old: str, new: str, old_time: str, new_time: str) -> None:
    op.create_table(
        new,
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("database_id", sa.String(), nullable=False),
        sa.Column("is_foreign", sa.Boolean(), nullable=False),
        sa.Column(new_time, _TIME, nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f(f"pk_{new}")),
    )
    same = {name: name for name in ("attempt_id", "database_id", "is_foreign")}
    _copy(old, new, same | {new_time: old_time})


def _move_pinned_checkpoints(old: str, new: str) -> None:
    op.create_table(
        new,
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f(f"fk_{new}_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "path", name=op.f(f"pk_{new}")),
    )
    _copy(old, new, {f'"{name}"': f'"{name}"' for name in ("job_id", "path", "user", "created_at")})


def _move_forecasts(old: str, new: str) -> None:
    op.create_table(
        new,
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("earliest", _TIME, nullable=True),
        sa.Column("likely", _TIME, nullable=True),
        sa.Column("latest", _TIME, nullable=True),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("code", sa.String(), nullable=False, server_default="expected"),
        sa.Column("sentence", sa.Text(), nullable=False, server_default=""),
        sa.Column("nodes", _JSON, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f(f"fk_{new}_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f(f"pk_{new}")),
    )
    names = ("job_id", "position", "earliest", "likely", "latest", "at", "code", "sentence", "nodes")
    _copy(old, new, {f'"{name}"': f'"{name}"' for name in names})
    op.create_index(op.f(f"ix_{new}_position"), new, ["position"])


def _move_registered_models(old: str, new: str) -> None:
    op.create_table(
        new,
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("tags", _JSON, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f(f"fk_{new}_project_id_projects")),
        sa.PrimaryKeyConstraint("project_id", "name", name=op.f(f"pk_{new}")),
    )
    names = ("project_id", "name", "description", "tags", "created_at", "updated_at")
    _copy_rows(old, new, {name: name for name in names})
    with op.batch_alter_table("mlflow_versions") as batch_op:
        batch_op.drop_constraint(op.f(f"fk_mlflow_versions_project_id_{old}"), type_="foreignkey")
        batch_op.create_foreign_key(
            op.f(f"fk_mlflow_versions_project_id_{new}"), new, ["project_id", "name"], ["project_id", "name"]
        )
    op.drop_table(old)


def _move_vertex_links(old: tuple[str, str], new: tuple[str, str]) -> None:
    # The table keeps its name, and PostgreSQL allows one index of a name: the rows wait in a table without any.
    parent, child = new
    op.execute(sa.text("CREATE TABLE vertex_links_before AS SELECT * FROM vertex_links"))
    op.drop_table("vertex_links")
    op.create_table(
        "vertex_links",
        sa.Column(parent, sa.String(), nullable=False),
        sa.Column(child, sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            [parent], ["vertex_records.id"], name=op.f(f"fk_vertex_links_{parent}_vertex_records"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            [child], ["vertex_records.id"], name=op.f(f"fk_vertex_links_{child}_vertex_records"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint(parent, child, "kind", name=op.f("pk_vertex_links")),
    )
    same = {"kind": "kind", "created_at": "created_at"}
    _copy("vertex_links_before", "vertex_links", {parent: old[0], child: old[1]} | same)
    op.create_index(op.f(f"ix_vertex_links_{child}"), "vertex_links", [child])
