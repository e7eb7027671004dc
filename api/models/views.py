"""REST views of models and versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.wire import models as wire

from core.db.repositories import models
from core.db.repositories.serving import servers_of_versions
from core.db.tables import Model, ModelChange, ModelVersion, Project, User
from core.domain.model_versions import VersionState
from core.registry.sources import UploadedSource


def model_views(session: Session, rows: Sequence[Model]) -> list[wire.ModelView]:
    ids = [row.id for row in rows]
    counts, aliases = models.counts_of(session, ids), models.aliases_of(session, ids)
    newest, stages = models.newest_of(session, ids), models.stages_of(session, ids)
    projects = _names(session, Project, {row.project_id for row in rows})
    users = _names(session, User, {row.user_id for row in rows})
    return [
        wire.ModelView(
            id=row.id,
            name=row.name,
            project=projects[row.project_id],
            user=users[row.user_id],
            description=row.description,
            labels=row.labels,
            is_protected=row.is_protected,
            versions=counts[row.id][0],
            latest=counts[row.id][1],
            aliases=aliases[row.id],
            stages=stages[row.id],
            newest=_newest(newest[row.id]) if row.id in newest else None,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )
        for row in rows
    ]


def _newest(row: ModelVersion) -> wire.NewestVersion:
    return wire.NewestVersion(
        version=row.number,
        state=cast("wire.VersionState", row.state),
        stage=cast("wire.Stage", row.stage),
        metrics=(row.lineage or {}).get("metrics", {}),
        created_at=row.created_at,
    )


def version_views(session: Session, model: Model, rows: Sequence[ModelVersion]) -> list[wire.VersionView]:
    """Views of versions of one model."""
    ids = [row.id for row in rows]
    holders, serving = models.holders_of(session, ids), servers_of_versions(session, ids)
    aliases = models.aliases_of(session, [model.id])[model.id]
    projects = _names(session, Project, {model.project_id})
    users = _names(session, User, {row.user_id for row in rows})
    return [
        wire.VersionView(
            id=row.id,
            model=model.name,
            project=projects[model.project_id],
            version=row.number,
            state=cast("wire.VersionState", row.state),
            reason=row.reason,
            stage=cast("wire.Stage", row.stage),
            aliases=[name for name, number in aliases.items() if number == row.number],
            is_protected=row.is_protected,
            used_by=holders[row.id],
            served_by=serving[row.id],
            description=row.description,
            labels=row.labels,
            format=row.format,
            size_bytes=row.size_bytes,
            file_count=row.file_count,
            done_bytes=row.done_bytes,
            digest=row.digest,
            source=_source(row.source),
            metrics=(row.lineage or {}).get("metrics", {}),
            user=users[row.user_id],
            created_at=row.created_at,
            ready_at=row.ready_at,
        )
        for row in rows
    ]


def _source(source: dict[str, Any]) -> wire.ModelSource:
    if source["kind"] == UploadedSource.KIND:
        return wire.ModelSource(kind="upload", path=UploadedSource.of_json(source).location)
    return wire.ModelSource(kind=source["kind"], job=source["job"], path=source["path"] or "")


def version_detail(session: Session, model: Model, row: ModelVersion) -> wire.VersionDetail:
    view = version_views(session, model, [row])[0]
    return wire.VersionDetail(
        **dict(view),
        location=f"{row.volume}/{row.path}" if row.state == VersionState.READY else None,
        lineage=None if row.lineage is None else wire.ModelLineage.model_validate(row.lineage),
    )


def change_view(row: ModelChange) -> wire.ModelChangeView:
    return wire.ModelChangeView(
        at=row.at,
        user=row.user,
        what=row.kind,
        version=row.version,
        name=row.name,
        before=row.before,
        after=row.after,
        reason=row.reason,
    )


def _names(session: Session, table: type[Project | User], ids: set[str]) -> dict[str, str]:
    rows = session.execute(select(table.id, table.name).where(table.id.in_(ids)))
    return {str(row.id): str(row.name) for row in rows}
