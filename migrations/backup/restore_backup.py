"""Restores a backup: all rows in one transaction, at the backup's migration, then brought up to date.

Attempts that were live in the backup are told to stop: the control loop ends what the engine still shows of them, and
only then starts the next attempt, so that no gang runs twice. Secrets are sealed again where the target has a key of
its own.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, func, inspect, select, text, update

from core import secrets
from core.db.bootstrap import read_first_volumes
from core.db.leases import BEAT, TICK, TICK_DONE
from core.settings import Settings
from core.storage.optuna_tables import folder_of
from core.tokens import KEY_FILE, KEY_LENGTH, platform_key, write_private
from migrations import alembic_config, locked_database, migrate
from migrations.backup.backup_file import BackupReader, BackupRefused
from migrations.backup.make_backup import ARCHIVES, OPTUNA, VOLUME
from migrations.backup.table_rows import has_data, load_rows, reflect

RESTORED: Final = "platform.restored"
_ENDED: Final = "ended"
_ACTOR: Final = "scheduler"
_SPARE_BYTES: Final = 64 * 2**20
# Schedulers that have nothing to do look this often, with reserve.
_IDLE: Final = timedelta(seconds=30)
# Above every token that a writer of the old platform may still hold.
_TOKENS_AHEAD: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RestoreSummary:
    """``fenced``: attempts that were live in the backup and are stopped."""

    created_at: str
    version: str
    rows: int
    files: int
    fenced: int


def restore_backup(
    settings: Settings, path: Path, passphrase: str, now: datetime, *, replaces: bool = False
) -> RestoreSummary:
    """Replace the platform's state by the backup's; the schedulers must be stopped.

    Raises:
        BackupRefused: a damaged file, a wrong passphrase, data of a newer version, a target that is in use or not
            empty; the target is as it was.
        OSError: a file cannot be read or written; the database is as it was.
    """
    reader = BackupReader(path)
    try:
        _demand_known(reader)
        key = reader.unlock(passphrase)
        reader.verify()
        _demand_room(settings, reader)
        with locked_database(settings.resolved_database_url) as connection:
            _demand_idle(connection, settings, now)
            _make_empty(connection, replaces=replaces)
            migrate(connection, reader.manifest["migration"])
            load_rows(connection, reader)
            migrate(connection, "head")
            tables = reflect(connection)
            root = _adapt_volumes(connection, tables, settings, Path(reader.manifest["home"]))
            _adapt_key(connection, tables, settings, key)
            fenced = _fence(connection, tables, reader, now)
            files = _restore_files(reader, settings, root)
    finally:
        reader.close()
    manifest = reader.manifest
    return RestoreSummary(manifest["created_at"], manifest["version"], sum(manifest["rows"].values()), files, fenced)


def _demand_known(reader: BackupReader) -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    if reader.manifest["migration"] not in {script.revision for script in scripts.walk_revisions()}:
        raise BackupRefused(
            f"The backup is of a newer version of Trainmaster ({reader.manifest['version']}, migration "
            f"{reader.manifest['migration']}); this one knows migrations up to {scripts.get_current_head()}. "
            "Install that version, then restore."
        )


def _demand_room(settings: Settings, reader: BackupReader) -> None:
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    free = shutil.disk_usage(settings.home).free
    if free < reader.size_bytes + _SPARE_BYTES:
        raise BackupRefused(
            f"{settings.home} has {free:,} free bytes, and the backup needs {reader.size_bytes:,}: free some space, or "
            "choose another data folder."
        )


def _demand_idle(connection: Connection, settings: Settings, now: datetime) -> None:
    """A platform of this data folder was found stopped by the folder's lock; others share the database by its URL."""
    if not settings.database_url or not inspect(connection).has_table("leases"):
        return
    leases = reflect(connection).tables["leases"]
    query = select(func.max(leases.c.expires_at)).where(leases.c.name.in_((TICK, TICK_DONE, BEAT)))
    seen_at = connection.execute(query).scalar()
    if seen_at is not None and seen_at > now - _IDLE:
        raise BackupRefused(
            "A scheduler uses this database: stop API, scheduler and beat (`docker compose stop api scheduler beat`), "
            f"wait {_IDLE.total_seconds():.0f} s, then restore."
        )


def _make_empty(connection: Connection, *, replaces: bool) -> None:
    if not replaces and has_data(connection):
        raise BackupRefused(
            "The target is not empty: its jobs, users and settings would be lost. Choose another data folder or "
            "database, or --force to replace them."
        )
    reflect(connection).drop_all(connection)
    if connection.dialect.name == "postgresql":  # the functions of triggers are not dropped with their tables
        query = text(
            "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = current_schema()::regnamespace "
            "and p.prorettype = 'trigger'::regtype"
        )
        for function in connection.execute(query).scalars().all():
            connection.execute(text(f"drop function {function}"))


def _adapt_volumes(connection: Connection, tables: MetaData, settings: Settings, old_home: Path) -> Path | None:
    """Volumes of the old data folder are in the new one, and those that the settings describe are as they say.

    Returns:
        The default volume's root, which is made; ``None``: the control plane does not see it.
    """
    volumes = tables.tables["volumes"]
    home = settings.home.resolve()
    for name, root in connection.execute(select(volumes.c.name, volumes.c.root)).all():
        if root is not None and Path(root).is_relative_to(old_home):
            moved = str(home / Path(root).relative_to(old_home))
            connection.execute(update(volumes).where(volumes.c.name == name).values(root=moved))
    for first in read_first_volumes(settings) if settings.first_volumes else ():
        values = first.model_dump(include={"kind", "root", "config"})
        connection.execute(update(volumes).where(volumes.c.name == first.name).values(values))
    root = connection.execute(select(volumes.c.root).where(volumes.c.name == settings.default_volume)).scalar()
    return None if root is None else Path(root)


def _adapt_key(connection: Connection, tables: MetaData, settings: Settings, key: bytes) -> None:
    has_key = settings.secret_key.get_secret_value() or (settings.home / KEY_FILE).exists()
    if not has_key and len(key) >= KEY_LENGTH:
        write_private(settings.home / KEY_FILE, key.decode())
        return
    own = platform_key(settings)
    if own == key:
        return
    rows = tables.tables["secrets"]
    for row in connection.execute(select(rows)).all():
        value = secrets.unseal(key, row.project_id, row.name, row.ciphertext)
        connection.execute(
            update(rows)
            .where(rows.c.project_id == row.project_id, rows.c.name == row.name)
            .values(ciphertext=secrets.seal(own, row.project_id, row.name, value))
        )


def _fence(connection: Connection, tables: MetaData, reader: BackupReader, now: datetime) -> int:
    """Have all live attempts stopped, and all leases expired; returns the number of attempts."""
    attempts, jobs, leases, events = (tables.tables[name] for name in ("attempts", "jobs", "leases", "events"))
    made_at = datetime.fromisoformat(reader.manifest["created_at"])
    sentence = (
        f"The platform was restored from its backup of {made_at:%Y-%m-%d %H:%M} UTC, in which this attempt was live: "
        "it is stopped or lost, and the job goes on with its next attempt."
    )
    live = connection.execute(
        select(attempts.c.id, attempts.c.job_id, jobs.c.project_id)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(attempts.c.state != _ENDED)
    ).all()
    stop = {"cause": "maintenance", "sentence": sentence, "at": now.isoformat()}
    connection.execute(
        update(attempts).where(attempts.c.state != _ENDED).values(stop=stop, generation=attempts.c.generation + 1)
    )
    lines: list[dict[str, Any]] = [
        _event(now, "attempt.stopping", sentence, job_id=row.job_id, attempt_id=row.id, project_id=row.project_id)
        for row in live
    ]
    summary = (
        f"The platform was restored from its backup of {made_at:%Y-%m-%d %H:%M} UTC (version "
        f"{reader.manifest['version']}, {reader.manifest['database']}). Live attempts that are stopped: {len(live)}."
    )
    connection.execute(events.insert(), [*lines, _event(now, RESTORED, summary)])
    past = now - timedelta(days=1)
    connection.execute(update(leases).values(token=leases.c.token + _TOKENS_AHEAD, holder="", expires_at=past))
    return len(live)


def _event(now: datetime, kind: str, reason: str, **of: str) -> dict[str, Any]:
    none = {"project_id": None, "job_id": None, "attempt_id": None}
    return {"at": now, "kind": kind, "actor": _ACTOR, "reason": reason, "data": {}, **none, **of}


def _restore_files(reader: BackupReader, settings: Settings, root: Path | None) -> int:
    settings.archive_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    targets: dict[str, Path] = {}
    for name in reader.names(ARCHIVES):
        file = name.removeprefix(f"{ARCHIVES}/")
        targets[name] = settings.archive_dir / file[:2] / file
    for name in reader.names(OPTUNA):
        targets[name] = folder_of(settings) / name.removeprefix(f"{OPTUNA}/")
    volume = reader.names(VOLUME)
    if volume and root is None:
        raise BackupRefused(
            f"The backup has {len(volume)} files of volume {settings.default_volume!r}, which the control plane does "
            "not see here: mount it, and state its root in TRAINMASTER_FIRST_VOLUMES."
        )
    if root is not None:
        root.mkdir(parents=True, exist_ok=True)
        targets |= {name: root / name.removeprefix(f"{VOLUME}/") for name in volume}
    for name, target in targets.items():
        reader.extract(name, target)
    return len(targets)
