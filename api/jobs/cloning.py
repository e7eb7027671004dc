"""A new job from the spec of another."""

from __future__ import annotations

import re
from itertools import count
from typing import Any, Final

from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from trainmaster.spec import with_changes

from api.auth import Caller
from core.db.tables import Job

_NAME_CHARS: Final = 63  # of a job's name
_NUMBERED: Final = re.compile(r"(.+)-[0-9]{1,6}")


def free_name(session: Session, caller: Caller, original: Job) -> str:
    """What a clone is called that was given no name: ``digits-2`` from ``digits``, or the next number that is free.

    A name means the newest job that has it: with the same one a clone would take its original's place.
    """
    numbered = _NUMBERED.fullmatch(original.name)
    # That of a clone is counted on; in another's the number may mean something.
    stem = numbered[1] if numbered and original.cloned_from else original.name
    stem = stem[: _NAME_CHARS - 7].rstrip("-")
    named = select(Job.name).where(or_(Job.name == stem, Job.name.startswith(f"{stem}-")), Job.deleted_at.is_(None))
    if not caller.is_admin:
        named = named.where(Job.project_id.in_(list(caller.projects)))
    taken = set(session.execute(named).scalars())
    return next(name for name in (f"{stem}-{number}" for number in count(2)) if name not in taken)


def changed_spec(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``changes`` laid over ``spec`` as RFC 7396 says: null removes, objects merge, everything else replaces.

    Shorthands count too: ``workers: 4`` replaces the replicas of the role. The ``output`` of the original is not taken
    over: the clone would overwrite its checkpoints. ``changes`` may name one, also that of the original.
    """
    return with_changes({key: value for key, value in spec.items() if key != "output"}, changes)
