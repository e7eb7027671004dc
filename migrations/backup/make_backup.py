"""Makes a backup while the platform runs: rows of one snapshot, code archives, model versions and, on demand, outputs.

The rows come first. Archives and model versions never change and are named by the rows; what is deleted meanwhile is
counted as missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sqlalchemy import Connection, Engine, make_url, select, text
from trainmaster.version import __version__, revision

from core.db.engine import make_engine
from core.settings import Settings
from core.storage.optuna_tables import folder_of
from core.storage.registry import FOLDER as MODELS
from core.storage.volumes import UPLOADS
from core.tokens import platform_key
from migrations import current_revision
from migrations.backup.backup_file import BackupRefused, BackupWriter, demand_passphrase
from migrations.backup.table_rows import dump_rows, reflect

ARCHIVES: Final = "archives"
BACKED_UP: Final = "platform.backed_up"
VOLUME: Final = "volume"  # below it, files of the default volume
OPTUNA: Final = "optuna"
_READY: Final = "ready"


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """``missing``: files that were deleted, or unreadable, during the backup. ``notes``: what is not in the file."""

    path: Path
    size_bytes: int
    rows: int
    files: int
    missing: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Contents:
    """Read in the snapshot. ``versions``: paths of ready model versions on the default volume."""

    migration: str
    database_id: str | None
    volume_root: Path | None
    archives: tuple[str, ...]
    versions: tuple[str, ...]
    optuna_schemas: int


def make_backup(
    settings: Settings, path: Path, passphrase: str, now: datetime, *, with_outputs: bool, replaces: bool = False
) -> BackupSummary:
    """Write ``path``, whole or not at all.

    Raises:
        BackupRefused: a short passphrase, an existing file, no database yet.
        OSError: the file cannot be written.
    """
    demand_passphrase(passphrase)
    if path.exists() and not replaces:
        raise BackupRefused(f"{path} exists; choose another name, or --force to replace it.")
    file = make_url(settings.resolved_database_url).database
    if settings.resolved_database_url.startswith("sqlite") and file and not Path(file).exists():
        raise BackupRefused(f"There is no platform to back up in {settings.home}; name its data folder with --home.")
    engine = make_engine(settings.resolved_database_url)
    try:
        migration = current_revision(engine)
        if migration is None:
            raise BackupRefused("There is no platform to back up: its database has no tables.")
        writer = BackupWriter(path)
        try:
            # SQLite reads one state in any transaction, also while others write.
            isolation = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
            with engine.connect().execution_options(trainmaster_read_only=True, **isolation) as connection:
                contents = _read_contents(connection, settings, migration)
                rows = dump_rows(connection, writer)
            missing = [name for name, file in _files(settings, contents, path, with_outputs=with_outputs)
                       if not writer.add_file(name, file)]  # fmt: skip
            _add_optuna(settings, writer)
            manifest = _manifest(settings, contents, rows, missing, now, engine.dialect.name, with_outputs)
            files = len(writer.members) - len(rows)
            writer.close(manifest, platform_key(settings), passphrase)
        finally:
            writer.abandon()
        _note(engine, path, now)
    finally:
        engine.dispose()
    notes = _notes(settings, contents, with_outputs=with_outputs)
    return BackupSummary(path, path.stat().st_size, sum(rows.values()), files, tuple(missing), notes)


def _read_contents(connection: Connection, settings: Settings, migration: str) -> _Contents:
    tables = reflect(connection).tables
    identity, volumes, archives = tables["identity"], tables["volumes"], tables["archives"]
    root = connection.execute(select(volumes.c.root).where(volumes.c.name == settings.default_volume)).scalar()
    versions: tuple[str, ...] = ()
    if "model_versions" in tables:
        known = tables["model_versions"]
        versions = tuple(connection.execute(select(known.c.path).where(known.c.state == _READY)).scalars())
    schemas = 0
    if connection.dialect.name == "postgresql":
        query = text("select count(*) from pg_namespace where starts_with(nspname, 'optuna_')")
        schemas = connection.execute(query).scalar_one()
    return _Contents(
        migration=migration,
        database_id=connection.execute(select(identity.c.id)).scalar(),
        volume_root=None if root is None else Path(root),
        archives=tuple(connection.execute(select(archives.c.digest).where(archives.c.is_complete)).scalars()),
        versions=versions,
        optuna_schemas=schemas,
    )


def _note(engine: Engine, path: Path, now: datetime) -> None:
    """For administrators, and for ``trainmaster upgrade --check``."""
    with engine.begin() as connection:
        reason = f"A backup was made: {path.name}, {path.stat().st_size:,} bytes."
        row = {"at": now, "kind": BACKED_UP, "actor": "scheduler", "reason": reason, "data": {}}
        connection.execute(reflect(connection).tables["events"].insert(), row)


def _files(
    settings: Settings, contents: _Contents, own_path: Path, *, with_outputs: bool
) -> Iterator[tuple[str, Path]]:
    for digest in contents.archives:
        hexes = digest.removeprefix("sha256:")
        yield f"{ARCHIVES}/{hexes}.tar.gz", settings.archive_dir / hexes[:2] / f"{hexes}.tar.gz"
    root = contents.volume_root
    if root is None:
        return
    own = {own_path.resolve(), own_path.resolve().with_name(f"{own_path.name}.part")}
    for folder in contents.versions:
        found = False
        for name, file in _walk(root, root / folder):
            found = True
            yield name, file
        if not found:
            yield f"{VOLUME}/{folder}", root / folder  # counted as missing
    if with_outputs:
        for entry in sorted(root.iterdir()):
            if entry.name in (MODELS, UPLOADS):
                continue
            yield from ((name, file) for name, file in _walk(root, entry) if file not in own)


def _walk(root: Path, top: Path) -> Iterator[tuple[str, Path]]:
    if not top.is_dir() or top.is_symlink():
        files = [top] if top.exists() or top.is_symlink() else []
    else:
        files = sorted(file for file in top.rglob("*") if file.is_symlink() or not file.is_dir())
    for file in files:
        yield f"{VOLUME}/{file.relative_to(root).as_posix()}", file


def _add_optuna(settings: Settings, writer: BackupWriter) -> None:
    """Optuna's storages in SQLite, each by SQLite's online backup: scripts may be writing to them."""
    for file in sorted(folder_of(settings).glob("*.sqlite3")):
        with TemporaryDirectory() as folder:
            copy = Path(folder) / file.name
            with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            writer.add_file(f"{OPTUNA}/{file.name}", copy)


def _manifest(
    settings: Settings,
    contents: _Contents,
    rows: dict[str, int],
    missing: list[str],
    now: datetime,
    dialect: str,
    with_outputs: bool,
) -> dict[str, Any]:
    return {
        "version": __version__,
        "revision": revision(),
        "migration": contents.migration,
        "database": dialect,
        "database_id": contents.database_id,
        "created_at": now.isoformat(),
        "home": str(settings.home.resolve()),
        "default_volume": settings.default_volume,
        "with_outputs": with_outputs,
        "rows": rows,
        "missing": missing,
    }


def _notes(settings: Settings, contents: _Contents, *, with_outputs: bool) -> tuple[str, ...]:
    found = []
    if contents.volume_root is None:
        found.append(
            f"Model files are not included: the control plane does not see volume {settings.default_volume!r}."
        )
    if not with_outputs:
        found.append("Outputs (logs, checkpoints) are not included; --with-outputs adds those of the default volume.")
    if contents.optuna_schemas:
        found.append("Optuna's own storages are schemas of the database and not included; pg_dump has them.")
    return tuple(found)
