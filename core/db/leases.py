"""Leases with fencing tokens: at most one holder writes, and one whose lease another has acquired writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

import orjson
from sqlalchemy import String, Table, bindparam, func, literal, or_, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from core.db.tables import Lease
from core.domain.errors import StaleWrite

TICK: Final = "tick"
# The lease's holder is the active beat.
BEAT: Final = "beat"
# Not a lease but a timestamp: when the last tick completed. A tick that keeps failing renews its lease, too.
TICK_DONE: Final = "tick.done"


# Built once: every reconcile pass begins and ends with them.
_leases: Final = cast("Table", Lease.__table__)
_CHANGE: Final = update(_leases).where(
    _leases.c.name == bindparam("lease_name"), _leases.c.token == bindparam("expected_token")
)


def _or_take_over(fresh: Any) -> Any:
    """One statement for leases that are there and for those that are not."""
    return fresh.on_conflict_do_update(
        index_elements=[_leases.c.name],
        set_={"holder": fresh.excluded.holder, "token": _leases.c.token + 1, "expires_at": fresh.excluded.expires_at},
        where=or_(_leases.c.expires_at <= bindparam("now"), _leases.c.holder == fresh.excluded.holder),
    )


def _acquire(insert: Callable[[Table], Any]) -> Any:
    values = {"name": bindparam("lease_name"), "holder": bindparam("new_holder"), "token": 1}
    fresh = insert(_leases).values(**values, expires_at=bindparam("new_end"))
    return _or_take_over(fresh).returning(_leases.c.token)


def _acquire_all(insert: Callable[[Table], Any], names: Any) -> Any:
    rows = select(
        names.c.value,
        bindparam("new_holder", type_=String),
        literal(1),
        bindparam("new_end", type_=_leases.c.expires_at.type),
    ).where(names.c.value.is_not(None))  # SQLite takes ON CONFLICT for a join's ON without a WHERE
    fresh = insert(_leases).from_select(["name", "holder", "token", "expires_at"], rows)
    return _or_take_over(fresh).returning(_leases.c.name, _leases.c.token)


_ACQUIRE: Final = {"postgresql": _acquire(postgresql.insert), "sqlite": _acquire(sqlite.insert)}
# Of many: the names as one parameter.
_ACQUIRE_ALL: Final = {
    "postgresql": _acquire_all(
        postgresql.insert,
        func.unnest(bindparam("names", type_=ARRAY(String))).table_valued("value", name="names").render_derived(),
    ),
    "sqlite": _acquire_all(sqlite.insert, func.json_each(bindparam("names")).table_valued("value", name="names")),
}
_MATCHES_LEASES: Final = tuple_(_leases.c.name, _leases.c.token).in_(bindparam("held", expanding=True))
_LOCK_ALL: Final = (
    select(_leases.c.name)
    .where(_MATCHES_LEASES)
    .order_by(_leases.c.name)
    .with_for_update()  # SQLite has a single writer anyway
)
_RELEASE_ALL: Final = update(_leases).where(_MATCHES_LEASES).values(expires_at=bindparam("new_end"))


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    name: str
    holder: str
    token: int


def acquire(session: Session, name: str, *, holder: str, now: datetime, ttl: timedelta) -> LeaseGrant | None:
    """The lease, or ``None`` while another process holds it. Its holder gets it again, with the next fencing token."""
    token = (
        session.connection()
        .execute(
            _ACQUIRE[session.get_bind().dialect.name],
            {"lease_name": name, "new_holder": holder, "new_end": now + ttl, "now": now},
        )
        .scalar_one_or_none()
    )
    return None if token is None else LeaseGrant(name, holder, token)


def acquire_all(
    session: Session, names: Iterable[str], *, holder: str, now: datetime, ttl: timedelta
) -> dict[str, LeaseGrant]:
    """Like :func:`acquire` for many leases, by name; leases of other holders are left out."""
    wanted: Any = sorted(names)
    if not wanted:
        return {}
    dialect = session.get_bind().dialect.name
    rows = session.connection().execute(
        _ACQUIRE_ALL[dialect],
        {
            "names": orjson.dumps(wanted).decode() if dialect == "sqlite" else wanted,
            "new_holder": holder,
            "new_end": now + ttl,
            "now": now,
        },
    )
    return {row.name: LeaseGrant(row.name, holder, row.token) for row in rows}


def check_all(session: Session, leases: Sequence[LeaseGrant]) -> set[str]:
    """Lock the rows for this writing transaction; returns the names of the leases that are still ours."""
    if not leases:
        return set()
    pairs = [(lease.name, lease.token) for lease in leases]
    return set(session.connection().execute(_LOCK_ALL, {"held": pairs}).scalars())


def release_all(session: Session, leases: Sequence[LeaseGrant], *, now: datetime) -> None:
    """Give leases back early. Harmless if some are no longer ours."""
    pairs = [(lease.name, lease.token) for lease in leases]
    session.connection().execute(_RELEASE_ALL, {"held": pairs, "new_end": now})


def check(session: Session, lease: LeaseGrant) -> None:
    """Lock the lease's row for this transaction and compare the fencing token, before every fenced write.

    Raises:
        StaleWrite: another process has taken the lease over.
    """
    # An update, not a select: it locks the row on PostgreSQL and takes the write lock on SQLite.
    expected = {"lease_name": lease.name, "expected_token": lease.token, "holder": lease.holder}
    if session.connection().execute(_CHANGE, expected).rowcount != 1:
        raise StaleWrite(f"lease {lease.name} has been taken over")


def release(session: Session, lease: LeaseGrant, *, now: datetime) -> None:
    """Give the lease back early. Harmless if it is no longer ours."""
    session.connection().execute(_CHANGE, {"lease_name": lease.name, "expected_token": lease.token, "expires_at": now})


def mark(session: Session, name: str, *, holder: str, now: datetime) -> None:
    """Note in the row ``name`` that something was done ``now``; such a row has no lease semantics."""
    acquire(session, name, holder=holder, now=now, ttl=timedelta(0))


def marked_at(session: Session, name: str) -> datetime | None:
    """When ``mark`` was last called; ``None``: never."""
    return session.execute(select(Lease.expires_at).where(Lease.name == name)).scalar_one_or_none()
