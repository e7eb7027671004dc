"""Verification of an exported audit log: a hash chain, whose every entry holds the hash of the one before it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

CUT_ACTION: Final = "cut_audit_log"
FIRST_HASH: Final = "0" * 64  # precedes the first entry
_CHAIN_FIELDS: Final = frozenset({"position", "previous_hash", "hash"})


def entry_hash(previous_hash: str, entry: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the previous hash, a line break, and the entry's canonical JSON without its chain fields.

    Canonical: sorted names, no blanks, UTF-8.
    """
    content = {name: value for name, value in entry.items() if name not in _CHAIN_FIELDS}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{previous_hash}\n{text}".encode()).hexdigest()


@dataclass(slots=True)
class AuditVerification:
    """``mistakes``: one sentence for each entry that was changed or removed; empty: the log is intact.

    ``position`` and ``hash``: of the newest chained entry. ``first``: position of the oldest entry that is left.
    ``unchained``: entries that the scheduler has not chained yet.
    """

    entries: int = 0
    first: int | None = None
    position: int = 0
    hash: str = FIRST_HASH
    unchained: int = 0
    mistakes: list[str] = field(default_factory=list)


def verify_entries(entries: Iterable[Mapping[str, Any]], head: tuple[int, str] | None = None) -> AuditVerification:
    """Verify a whole, unfiltered export, in its order.

    Args:
        head: position and hash of the newest entry at an earlier verification, which must still be there: only this
            shows that the newest entries were removed.
    """
    found = AuditVerification()
    cuts: dict[int, str] = {}
    previous: str | None = None
    begin_hash = FIRST_HASH
    is_head_found = head is None or head[0] == 0
    for entry in entries:
        found.entries += 1
        position, stored = entry.get("position"), entry.get("hash")
        if not isinstance(position, int):
            found.unchained += 1
            continue
        if previous is None:
            found.first, begin_hash, found.position = position, str(entry.get("previous_hash")), position - 1
            previous = begin_hash
        if position != found.position + 1:
            missing = _range(found.position + 1, position - 1)
            found.mistakes.append(f"{missing} removed, before the entry of {entry.get('at')}")
            previous = str(entry.get("previous_hash"))
        expected = entry_hash(str(entry.get("previous_hash")), entry)
        if expected != stored or entry.get("previous_hash") != previous:
            found.mistakes.append(f"entry {position} was changed ({_described(entry)})")
        if entry.get("action") == CUT_ACTION:
            cuts |= {change["position"]: change["hash"] for change in entry.get("changes", ()) if "position" in change}
        if head is not None and position == head[0]:
            is_head_found = stored == head[1]
        found.position, found.hash = position, str(stored)
        previous = str(stored)
    if found.first is not None and found.first > 1 and cuts.get(found.first - 1) != begin_hash:
        found.mistakes.insert(0, f"{_range(1, found.first - 1)} removed, and no entry records that retention cut there")
    is_cut = head is not None and head[0] < (found.first or 1)
    if head is not None and not is_head_found and not is_cut:
        found.mistakes.append(f"entry {head[0]} with the hash {head[1][:16]}… is not there any more")
    return found


def _range(first: int, last: int) -> str:
    return f"entry {first} was" if first == last else f"entries {first} to {last} were"


def _described(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('at')}, {entry.get('action')} by {entry.get('user') or 'nobody'}"
