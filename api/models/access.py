"""Access to one model, like ``api.auth.JobAccess`` for jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path
from sqlalchemy.orm import Session

from api.auth import Caller, ProjectAccess, ProjectMembership, Role, project_of
from core.db.tables import Model, ModelVersion
from core.registry import versions
from core.registry.versions import Author


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """Access to one model of a project with at least ``role`` there; ``load`` checks it."""

    project: ProjectAccess
    name: str

    @property
    def caller(self) -> Caller:
        return self.project.caller

    def member(self, session: Session) -> ProjectMembership:
        return self.caller.member_of(session, self.project.name, self.project.role)

    def load(self, session: Session) -> Model:
        """The row. Raises ``NotFound`` or ``Forbidden``."""
        return versions.demand_model(session, self.member(session).project_id, self.name)

    def load_version(self, session: Session, ref: str) -> tuple[Model, ModelVersion]:
        """With its version of this number or alias."""
        model = self.load(session)
        return model, versions.find_version(session, model, ref)


def model_of(role: Role) -> Callable[..., Awaitable[ModelAccess]]:
    """A dependency for routes with ``{project}`` and ``{model}``."""
    authorised = project_of(role)

    async def access(
        model: Annotated[str, Path(description="Name of the model.", max_length=100)],
        project: ProjectAccess = Depends(authorised),  # noqa: B008 (an annotation cannot see the local name)
    ) -> ModelAccess:
        return ModelAccess(project, model)

    return access


def by_of(caller: Caller) -> Author:
    return Author(caller.user_id, caller.user, caller.actor)


ModelViewer = Annotated[ModelAccess, Depends(model_of("viewer"))]
ModelMember = Annotated[ModelAccess, Depends(model_of("member"))]
Version = Annotated[
    str, Path(description="The version's number, an alias, or `latest`: the newest that is ready.", max_length=128)
]
