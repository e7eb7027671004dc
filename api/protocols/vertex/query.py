"""Validation of query parameters: each is served, ignored without effect, or refused by its name.

https://cloud.google.com/apis/docs/system-parameters
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from api.protocols.kit.errors import NotServed
from core.domain.errors import InvalidRequest

_FORMATS: Final = frozenset({"$alt", "alt"})
# Ignored: they set only the response's layout, or accounting.
_IDLE: Final = frozenset({"prettyPrint", "$prettyPrint", "$.xgafv", "quotaUser"})
_IN_HEADER: Final = "tokens in an address are (send it in the header Authorization: Bearer)"
_ABSENT: Final[Mapping[str, str]] = {
    "readMask": "a choice of an answer's fields is",
    "fields": "a choice of an answer's fields is",
    "$fields": "a choice of an answer's fields is",
    "callback": "JSONP is",
    "validateOnly": "validate_only is",
    "allowMissing": "allow_missing is (create it first)",
    "force": "deleting what lies below with it is (delete that first)",
    "etag": "a condition on the etag is",
    "view": "another view of an answer is",
    "orderBy": "another order is",
    "filter": "a filter is",
    "pageSize": "pages are",
    "pageToken": "pages are",
    "updateMask": "update_mask is",
    "access_token": _IN_HEADER,
    "oauth_token": _IN_HEADER,
    "key": _IN_HEADER,
}


def demand_known(query: Mapping[str, str], served: Collection[str]) -> None:
    """Refuse parameters that the route does not read.

    Raises:
        NotServed: a parameter of the real API with a non-empty value.
        InvalidRequest: an unknown parameter, or a response format other than JSON.
    """
    for name, value in query.items():
        if name in _FORMATS:
            if value.partition(";")[0] != "json":
                raise InvalidRequest(f"Invalid value at '{name}': answers are json, not {value[:50]!r}.", field=name)
        elif name in served or name in _IDLE:
            continue
        elif name in _ABSENT:
            if value not in ("", "0", "false"):
                raise NotServed(f"{name}: {_ABSENT[name]} not served by this platform here; leave it out.")
        else:
            raise InvalidRequest(
                f'Invalid JSON payload received. Unknown name "{name[:100]}": Cannot bind query parameter.',
                field=name[:100],
            )
