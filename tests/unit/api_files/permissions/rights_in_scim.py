"""The routes of SCIM in the table of who may do what: tokens of scope ``scim`` open them, and no others."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from core.db.tables import ScimResource
from tests.unit.api_files.permissions.rights import DERIVED, OK, OUT, PEOPLE, Case, case

_PROVIDER = {**dict.fromkeys((*PEOPLE, *DERIVED), 403), **OUT, "scim": OK}
_REFUSED = {**_PROVIDER, "scim": 405}
_AT = "/scim/v2"
_USER = {"userName": "new@x.org", "externalId": "s-2"}
_PATCH = {
    "schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"],
    "Operations": [{"op": "replace", "path": "displayName", "value": "leads"}],
}
SCIM: dict[str, Case] = {
    f"GET {_AT}/ServiceProviderConfig": case(_PROVIDER),
    f"GET {_AT}/{{kind}}": case(_PROVIDER, f"{_AT}/Users"),
    f"POST {_AT}/{{kind}}": case(_PROVIDER, f"{_AT}/Users", json=_USER),
    **{f"{method} {_AT}/{{kind}}": case(_REFUSED, f"{_AT}/Users") for method in ("PUT", "PATCH", "DELETE")},
    f"GET {_AT}/{{kind}}/{{resource_id}}": case(_PROVIDER, f"{_AT}/Groups/scim-1"),
    f"PUT {_AT}/{{kind}}/{{resource_id}}": case(_PROVIDER, f"{_AT}/Groups/scim-1", json={"displayName": "ml"}),
    f"PATCH {_AT}/{{kind}}/{{resource_id}}": case(_PROVIDER, f"{_AT}/Groups/scim-1", json=_PATCH),
    f"DELETE {_AT}/{{kind}}/{{resource_id}}": case(_PROVIDER, f"{_AT}/Groups/scim-1"),
}


def furnish_scim(session: Any, now: datetime) -> None:
    """A group of the provider."""
    group = {"kind": "Group", "key": "ml", "body": {"displayName": "ml"}}
    session.add(ScimResource(id="scim-1", created_at=now, updated_at=now, **group))
