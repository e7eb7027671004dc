"""Who may come, what each of them gets, and a line of the table of who may do what."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from api.app.token_scopes import resource_of

# Everybody who may come. `reader`: the member's read-only token. `plain`: the platform admin's token without the
# scope admin, so a user without projects. `expired`: the member's token of yesterday.
PEOPLE = ("anonymous", "attempt", "expired", "stranger", "plain", "reader", "viewer", "member", "owner", "root")
# Callers whose answers follow from those of another. `elsewhere`: the member's token, limited to another project: as a
# stranger. `narrow`: the member's token, limited to jobs:read and to the project. `service`: a service account of the
# project, with the role of a member. `scim`: root's token of the scope scim, which opens SCIM alone.
DERIVED = ("elsewhere", "narrow", "service", "scim")

# What each gets: ok is 2xx (and the redirects of pages), anything else a status.
OK = 0
OUT = {"anonymous": 401, "attempt": 401, "expired": 401}
OPEN: Mapping[str, int] = {}
ANY_READER = OUT
ANY_WRITER = {**OUT, "reader": 403}
PLATFORM_ADMIN = {**OUT, **dict.fromkeys(("stranger", "plain", "reader", "viewer", "member", "owner"), 403)}
VIEWER = {**OUT, "stranger": 404, "plain": 404}
MEMBER = {**VIEWER, "reader": 403, "viewer": 403}
PROJECT_ADMIN = {**MEMBER, "member": 403}
ATTEMPT = {**dict.fromkeys(PEOPLE, 401), "attempt": OK}
# MLflow's: a job's own script reads and writes what is its job's, users read what is their projects'.
RUN_READER = {"anonymous": 401, "expired": 401, "stranger": 404, "plain": 404}
RUN_WRITER = {**dict.fromkeys(PEOPLE, 403), "anonymous": 401, "expired": 401, "attempt": OK}
ANY_RUN_READER = {"anonymous": 401, "expired": 401}

# Where a stranger is let in as the admin of another project; the token's user is none.
OF_ELSEWHERE = {"GET /api/v1/audit": 403, "GET /api/v1/audit/export": 403}
# A service account has no login, creates no tokens, and has no other project.
OF_SERVICE_ACCOUNTS = {
    "DELETE /api/v1/projects/{project}": 404,
    "POST /api/v1/tokens": 403,
    "POST /api/v1/login/codes": 403,
    "DELETE /api/v1/tokens/{token_id}": 404,
}


@dataclass(frozen=True)
class Case:
    """One route with a request that works for whoever may make it, and the refusals of the others."""

    refused: Mapping[str, int]
    path: str = ""  # unstated: the route's own, filled in
    more: Mapping[str, Any] = field(default_factory=dict)

    def expected(self, who: str, route: str) -> int:
        """The status that ``who`` gets; ``OK``: any success."""
        if who in self.refused:
            return self.refused[who]
        if who == "elsewhere":
            return OF_ELSEWHERE.get(route, self.refused.get("stranger", OK))
        if who == "service":
            return OF_SERVICE_ACCOUNTS.get(route, self.refused.get("member", OK))
        if who == "narrow":
            return self._of_narrow(route)
        if who == "scim":
            return self._of_narrow(route, ())
        return self.refused.get(who, OK)

    def _of_narrow(self, route: str, kinds: Collection[str] = ("jobs", "metadata")) -> int:
        is_open = self.refused.get("anonymous", OK) == self.refused.get("reader", OK)
        # Custom methods that no service has are refused before the scope is.
        if "{action}" in route or is_open or resource_of(self.path or route.partition(" ")[2]) in kinds:
            return self.refused.get("reader", OK)
        return 403


def case(refused: Mapping[str, int], path: str = "", **more: Any) -> Case:
    return Case(refused, path, more)


# Vertex AI's and Cloud Storage's, whose clients would try to refresh a token that is answered with 401.
NOT_IN = {"anonymous": 403, "attempt": 403, "expired": 403}
VERTEX_READER = {**NOT_IN, "stranger": 403, "plain": 403}
VERTEX_MEMBER = {**VERTEX_READER, "reader": 403, "viewer": 403}
# A job's script has in a bucket what its job has.
NOT_IN_STORAGE = {"anonymous": 403, "expired": 403}
BUCKET_READER = {**NOT_IN_STORAGE, "stranger": 404, "plain": 404}
BUCKET_WRITER = {**BUCKET_READER, "reader": 403, "viewer": 403}
NOT_SERVED = {**dict.fromkeys(PEOPLE, 501), **NOT_IN}
