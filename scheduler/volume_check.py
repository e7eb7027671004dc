"""Registered volumes that jobs cannot use here: reported at the start, before the restart of a job is refused."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Volume
from core.domain.errors import ExecutorRefused
from core.settings import Settings
from executors.base import VolumeSource


def refused_volumes(sessions: SessionFactory, settings: Settings) -> Sequence[str]:
    """A sentence on each local volume that the Kubernetes driver will refuse, by name; none with another executor.

    Raises:
        Unavailable: the database is away.
    """
    if settings.executor != "kubernetes":
        return ()
    from executors.kubernetes.volumes import render_volume

    host_paths = tuple(filter(None, settings.host_paths.split(":")))
    with unit_of_work(sessions, read_only=True) as session:
        rows = session.scalars(select(Volume).where(Volume.kind == "local").order_by(Volume.name)).all()
        sources = [
            VolumeSource(row.name, row.kind, {**row.config, "path": row.config.get("path") or row.root}) for row in rows
        ]
    sentences = []
    for source in sources:
        try:
            render_volume(source, name="volume", target="/volume", read_only=True, host_paths=host_paths)
        except ExecutorRefused as refused:
            sentences.append(refused.sentence)
    return sentences
