from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from trainmaster.audit import FIRST_HASH, entry_hash


def entries(count: int) -> list[dict[str, Any]]:
    """A chain of its own."""
    made: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        entry = {
            "id": number, "at": "2026-11-21T07:00:00Z", "action": "cancel_job", "method": "POST", "user": "ann",
            "route": "/api/v1/jobs/{job}/cancel", "user_id": "user-1", "token_id": "token-1", "address": "10.0.0.7",
            "object_kind": "job", "object_id": f"job-{number}", "project_id": "p-1", "project": "vision",
            "outcome": "refused", "status": 403, "code": "forbidden", "request_id": "r", "repeats": 3, "changes": [],
        }  # fmt: skip
        previous = made[-1]["hash"] if made else FIRST_HASH
        chained = {"position": number, "previous_hash": previous, "hash": entry_hash(previous, entry)}
        made.append({**entry, **chained})
    return made


def lines(made: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in made)


def test_entries_are_listed_by_filters(cli: Any, server: Any, page: Any) -> None:
    server.on("GET", "/audit", page(*entries(1)))
    shown = cli("audit", "list", "--user", "ann", "--outcome", "refused", "--since", "2026-11-01").stdout
    assert "cancel_job (3 times)" in shown
    assert "refused: forbidden" in shown
    query = server.requests[-1].url.params
    assert (query["user"], query["outcome"], query["since"][:10]) == ("ann", "refused", "2026-11-01")
    assert cli("audit", "list", "--outcome", "maybe").exit_code == 2


def test_an_export_is_verified_later(cli: Any, server: Any, tmp_path: Path) -> None:
    made = entries(3)
    server.on("GET", "/audit/export", httpx.Response(200, content=lines(made)))
    file = tmp_path / "log.jsonl"
    assert cli("audit", "export", str(file)).exit_code == 0
    assert [json.loads(line) for line in file.read_text().splitlines()] == made
    for words in ((), (str(file),)):
        found = cli("audit", "verify", *words)
        assert found.exit_code == 0
        assert f"3:{made[-1]['hash']}" in found.stdout
    file.write_bytes(lines([made[0], {**made[1], "user": "eve"}, made[2]]))
    forged = cli("audit", "verify", str(file))
    assert forged.exit_code == 1
    assert "entry 2 was changed" in forged.stdout
    file.write_bytes(lines(made[:2]))
    cut = cli("audit", "verify", str(file), "--head", f"3:{made[-1]['hash']}")
    assert (cut.exit_code, "entry 3" in cut.stdout) == (1, True)


@pytest.mark.parametrize(("content", "code"), [(b"no json\n", 1), (b"\xff", 1), (None, 1)])
def test_what_is_no_export_is_named(cli: Any, server: Any, tmp_path: Path, content: bytes | None, code: int) -> None:
    file = tmp_path / "log.jsonl"
    if content is not None:
        file.write_bytes(content)
    found = cli("audit", "verify", str(file))
    assert found.exit_code == code
    assert "log.jsonl" in found.stderr
    assert "Traceback" not in found.stderr
