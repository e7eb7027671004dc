"""Why waiting jobs wait: a row for each shape of gang, and one for a project's user where theirs is another.

What quotas and shares have to say is equal for all jobs of one shape that one user has in one project, and is written for
these alone: the row of a shape speaks to whoever submits such a gang next.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, Label, and_, func, true
from sqlalchemy.orm import aliased

from core.db.rows import AnySelect
from core.db.tables import Job, WaitReason

_OfUser: Final = aliased(WaitReason)


def user_key(shape: str, project_id: str, user_id: str) -> str:
    """Under which ``wait_reasons.shape`` has the reason of one user's jobs of this shape in this project."""
    return f"{shape}/{project_id}/{user_id}"


def reason_columns() -> tuple[Label[Any], ...]:
    """``shape_code``, ``shape_sentence`` and ``shape_numbers`` of a query that :func:`with_reasons` has joined."""
    return (
        func.coalesce(_OfUser.code, WaitReason.code).label("shape_code"),
        func.coalesce(_OfUser.sentence, WaitReason.sentence).label("shape_sentence"),
        func.coalesce(_OfUser.numbers, WaitReason.numbers).label("shape_numbers"),
    )


def with_reasons(query: AnySelect, where: ColumnElement[bool] | None = None) -> AnySelect:
    """``query`` of jobs with what its shape waits for, if that is known. ``where``: of which jobs alone."""
    only = true() if where is None else where
    of_user = Job.shape + "/" + Job.project_id + "/" + Job.user_id
    return query.join(WaitReason, and_(WaitReason.shape == Job.shape, only), isouter=True).join(
        _OfUser, and_(_OfUser.shape == of_user, only), isouter=True
    )
