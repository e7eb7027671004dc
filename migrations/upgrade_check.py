"""What an upgrade to this version would do, and what it could meet: read from the database, nothing is changed."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, func, make_url, select, text
from trainmaster.version import __version__

from core.db.engine import make_engine
from core.settings import Settings
from migrations import NewerDatabase, alembic_config, demand_known
from migrations.backup.make_backup import BACKED_UP
from migrations.backup.table_rows import reflect

# SQLite writes an altered table anew, and keeps the old pages until the end.
_ROOM_FACTOR: Final = 2
_RECENT: Final = timedelta(days=1)
_CLIENT_AGE: Final = timedelta(days=30)
_ENDED_JOBS: Final = ("succeeded", "failed", "cancelled", "expired")
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")


@dataclass(slots=True)
class UpgradeCheck:
    """``problems``: the upgrade would be refused, or could fail. ``warnings``: to know before. ``live_jobs`` go on."""

    version: str
    migration: str | None
    newest: str | None
    pending: list[dict[str, str]] = field(default_factory=list)
    live_jobs: int = 0
    database_bytes: int = 0
    free_bytes: int = 0
    last_backup_at: datetime | None = None
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def is_supported(version: str, other: str) -> bool:
    """Whether two parts of the platform work together: of one major version, at most one minor version apart. An
    unreadable version is not.
    """
    own, others = _VERSION.match(version), _VERSION.match(other)
    if own is None or others is None:
        return False
    return own[1] == others[1] and abs(int(own[2]) - int(others[2])) <= 1


def check_upgrade(settings: Settings, now: datetime, *, version: str = __version__) -> UpgradeCheck:
    """Raises ``OperationalError``: the database is away."""
    url = settings.resolved_database_url
    scripts = ScriptDirectory.from_config(alembic_config())
    check = UpgradeCheck(version, None, scripts.get_current_head())
    file = make_url(url).database
    if url.startswith("sqlite") and file and not Path(file).exists():
        check.warnings.append(f"There is no database in {settings.home} yet: the first start makes it.")
        return check
    engine = make_engine(url)
    try:
        with engine.connect().execution_options(trainmaster_read_only=True) as connection:
            try:
                check.migration = demand_known(connection)
            except NewerDatabase as error:
                check.problems.append(error.sentence)
                return check
            steps = scripts.iterate_revisions(check.newest or "head", check.migration or "base")
            check.pending = [{"migration": step.revision, "purpose": step.doc} for step in steps][::-1]
            if check.migration is not None:
                _read_state(connection, check, now)
    finally:
        engine.dispose()
    _check_room(settings, check)
    _check_backup(check, now)
    return check


def _read_state(connection: Connection, check: UpgradeCheck, now: datetime) -> None:
    metadata = reflect(connection)
    jobs, events = metadata.tables["jobs"], metadata.tables["events"]
    live = jobs.c.state.not_in(_ENDED_JOBS)
    check.live_jobs = connection.execute(select(func.count()).select_from(jobs).where(live)).scalar_one()
    backups = select(func.max(events.c.at)).where(events.c.kind == BACKED_UP)
    check.last_backup_at = connection.execute(backups).scalar()
    if connection.dialect.name == "postgresql":
        size = text("select pg_database_size(current_database())")
    else:
        size = text("select page_count * page_size from pragma_page_count(), pragma_page_size()")
    check.database_bytes = connection.execute(size).scalar_one()
    _check_versions(connection, metadata, check, now)


def _check_versions(connection: Connection, metadata: MetaData, check: UpgradeCheck, now: datetime) -> None:
    attempts, tokens, users = (metadata.tables[name] for name in ("attempts", "tokens", "users"))
    policy = "supported are versions with the same major number, and a minor number at most one apart"
    if "platform_version" in attempts.c:
        query = select(attempts.c.platform_version, func.count()).where(attempts.c.ended_at.is_(None))
        for version, count in connection.execute(query.group_by(attempts.c.platform_version)):
            if version is not None and not is_supported(check.version, version):
                check.warnings.append(
                    f"Running attempts with the runtime of version {version}: {count}; {policy}. Let them end, or "
                    "restart them after the upgrade."
                )
    if "client_version" in tokens.c:
        used = tokens.c.last_used_at > now - _CLIENT_AGE
        columns: tuple[Any, ...] = (users.c.name, tokens.c.client_version)
        query = select(*columns).join(users, users.c.id == tokens.c.user_id).where(used).distinct().order_by(*columns)
        old = [
            f"{user} ({version})"
            for user, version in connection.execute(query)
            if version is not None and not is_supported(check.version, version)
        ]
        if old:
            check.warnings.append(f"Users with a client that is too old or too new: {', '.join(old)}; {policy}.")


def _check_room(settings: Settings, check: UpgradeCheck) -> None:
    folder = settings.home if settings.home.exists() else settings.home.parent
    check.free_bytes = shutil.disk_usage(folder).free
    needed = _ROOM_FACTOR * check.database_bytes
    if check.pending and not settings.database_url and check.free_bytes < needed:
        check.problems.append(
            f"The migrations may need {needed:,} bytes in {settings.home}, and {check.free_bytes:,} are free."
        )


def _check_backup(check: UpgradeCheck, now: datetime) -> None:
    if not check.pending or check.migration is None:
        return
    if check.last_backup_at is None:
        check.warnings.append("No backup is known: make one first (`trainmaster backup FILE`); there is no way down.")
    elif check.last_backup_at < now - _RECENT:
        check.warnings.append(
            f"The last backup is of {check.last_backup_at:%Y-%m-%d %H:%M} UTC: make another one before the upgrade."
        )
