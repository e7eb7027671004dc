"""Why jobs wait: a row for each shape of gang, and one for a project's user if theirs differs.

Reasons of quotas and shares are equal for all jobs of one shape of one user in one project, and are stored under that
key:
the row of a shape alone applies to all submitters of such a gang.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, Label, and_, func, true
from sqlalchemy.orm import aliased

from core.db.rows import AnySelect
from core.db.tables import Job, WaitReason

_OfUser: Final = aliased(WaitReason)


def user_key(shape: str, project_id: str, user_id: str) -> str:
    """The key in ``wait_reasons.shape`` for one user's jobs of this shape in this project."""
    return f"{shape}/{project_id}/{user_id}"


def reason_columns() -> tuple[Label[Any], ...]:
    """``shape_code``, ``shape_sentence`` and ``shape_numbers`` of a query that :func:`with_reasons` has joined."""
    return (
        func.coalesce(_OfUser.code, WaitReason.code).label("shape_code"),
        func.coalesce(_OfUser.sentence, WaitReason.sentence).label("shape_sentence"),
        func.coalesce(_OfUser.numbers, WaitReason.numbers).label("shape_numbers"),
    )


def with_reasons(query: AnySelect, where: ColumnElement[bool] | None = None) -> AnySelect:
    """``query`` of jobs joined with the wait reason of each job's shape, if known. ``where``: only for these jobs."""
    only = true() if where is None else where
    of_user = Job.shape + "/" + Job.project_id + "/" + Job.user_id
    return query.join(WaitReason, and_(WaitReason.shape == Job.shape, only), isouter=True).join(
        _OfUser, and_(_OfUser.shape == of_user, only), isouter=True
    )
