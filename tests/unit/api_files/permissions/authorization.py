"""The authorization matrix: what each kind of caller gets from each route, as ``test_permissions`` verifies it.

Renew it by ``python -m tests.unit.api_files.permissions.authorization``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.unit.api_files.permissions.rights import DERIVED, OK, PEOPLE, Case

MATRIX: Final = Path(__file__).with_name("authorization.txt")
# Vertex AI's long names, and how the matrix writes them.
_SHORT: Final = {
    "projects/{project}/locations/{location}": "{parent}",
    "experiments/{experiment}/runs/{run}/timeSeries": "{run}/timeSeries",
}
CALLERS: Final = (*PEOPLE, *DERIVED)


def matrix_of(routes: Mapping[str, Case]) -> str:
    """Routes in groups with the same answers: under each group's callers by status, ``ok`` for success."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for route, case in sorted(routes.items()):
        callers: defaultdict[str, list[str]] = defaultdict(list)
        for who in CALLERS:
            status = case.expected(who, route)
            callers["ok" if status == OK else str(status)].append(who)
        groups["\n".join(f"{status}: {', '.join(callers[status])}" for status in sorted(callers))].append(route)
    text = "\n".join("\n  ".join((answers, *found)) + "\n" for answers, found in groups.items())
    for name, short in _SHORT.items():
        text = text.replace(name, short)
    return text


if __name__ == "__main__":
    from tests.unit.api_files.permissions.test_permissions import ROUTES

    MATRIX.write_text(matrix_of(ROUTES))
