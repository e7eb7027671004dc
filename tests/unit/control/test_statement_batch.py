from __future__ import annotations

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from core.db.tables import Replica
from scheduler.control.attempts.storage.replica_writer import _RANK_AFTER_WORLD
from scheduler.control.attempts.storage.statement_batch import StatementBatch, flush


def test_the_worlds_of_two_gangs_are_written_in_one_transaction():
    engine = create_engine("sqlite://")
    Replica.metadata.create_all(engine)
    gangs = []
    for attempt in ("a", "b"):
        writes = StatementBatch()
        behind = {"is_attempt": attempt, "members": [f"{attempt}-0", f"{attempt}-1"], "count": 2}
        writes.add(_RANK_AFTER_WORLD, behind, is_unbatched=True)
        gangs.append(writes)
    with Session(engine) as session:
        flush(session, gangs)
