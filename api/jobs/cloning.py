"""The spec of a job's clone, and the name of a job's or a study's clone."""

from __future__ import annotations

import re
from itertools import count
from typing import Any, Final

from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from trainmaster.spec import with_changes

from api.auth import Caller
from core.db.tables import Job, Study

_NAME_CHARS: Final = 63  # of a job's name
_NUMBERED: Final = re.compile(r"(.+)-[0-9]{1,6}")


def free_name(session: Session, caller: Caller, original: Job | Study) -> str:
    """The default name of a clone: ``digits-2`` for ``digits``, or the next free number.

    A name refers to the newest job or study of that name: a clone of the same name would hide its original.
    """
    table = type(original)
    numbered = _NUMBERED.fullmatch(original.name)
    # Only the number of a job's clone is incremented; in another name of a job, the number may have a meaning.
    is_counted = isinstance(original, Study) or original.cloned_from is not None
    stem = numbered[1] if numbered and is_counted else original.name
    stem = stem[: _NAME_CHARS - 7].rstrip("-")
    named = select(table.name).where(
        or_(table.name == stem, table.name.startswith(f"{stem}-", autoescape=True)), table.deleted_at.is_(None)
    )
    if not caller.is_admin:
        named = named.where(table.project_id.in_(list(caller.projects)))
    taken = set(session.scalars(named))
    return next(name for name in (f"{stem}-{number}" for number in count(2)) if name not in taken)


def changed_spec(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``changes`` merged into ``spec`` as a JSON merge patch (RFC 7396): null removes, objects merge, the rest
    replaces.

    Shorthands apply, too: ``workers: 4`` replaces the replicas of the role. The original's ``output`` is dropped, since
    the clone would overwrite its checkpoints; ``changes`` may state any output, also the original's.
    """
    return with_changes({key: value for key, value in spec.items() if key != "output"}, changes)
