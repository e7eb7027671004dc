"""Validation of query parameters and headers: each is served, ignored without effect, or refused by its name.

https://cloud.google.com/storage/docs/json_api/v1/parameters
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from api.protocols.kit.errors import NotServed
from core.domain.errors import InvalidRequest

# Ignored: they set only the response's layout, or accounting. ``project`` is Google's; buckets here have none.
_IDLE: Final = frozenset(
    {"prettyPrint", "$prettyPrint", "$.xgafv", "quotaUser", "userIp", "upload_protocol", "uploadType", "project"}
)
_CHOICES: Final[Mapping[str, frozenset[str]]] = {
    "alt": frozenset({"json", "media"}),
    "$alt": frozenset({"json"}),
    # There are no access lists, so there is nothing that `full` would add.
    "projection": frozenset({"noAcl", "full"}),
}
_ACLS: Final = "access lists are; who may use a bucket is told by projects and their members"
_KEYS: Final = "keys of one's own are"
_IN_HEADER: Final = "tokens in an address are; send it in the header Authorization: Bearer"
_DELETED: Final = "objects that were deleted are"
_LATER: Final = "changing or copying an object where it lies is"
ABSENT: Final[Mapping[str, str]] = {
    "userProject": "billing is",
    "provisionalUserProject": "billing is",
    "predefinedAcl": _ACLS,
    "predefinedDefaultObjectAcl": _ACLS,
    "destinationPredefinedAcl": _ACLS,
    "copySourceAcl": _ACLS,
    "kmsKeyName": _KEYS,
    "destinationKmsKeyName": _KEYS,
    "contentEncoding": "another encoding than the object's own bytes is",
    "softDeleted": _DELETED,
    "restoreToken": _DELETED,
    "generation": "another generation is",
    "matchGlob": "a pattern of names is; use prefix and delimiter",
    "filter": "a filter is; use prefix and delimiter",
    "includeFoldersAsPrefixes": "folders without objects in lists are",
    "includeTrailingDelimiter": "folders as objects in lists are",
    "returnPartialSuccess": "half an answer is",
    "enableObjectRetention": "retention is",
    "overrideUnlockedRetention": "retention is",
    "sourceGeneration": _LATER,
    "rewriteToken": _LATER,
    "callback": "JSONP is",
    "access_token": _IN_HEADER,
    "oauth_token": _IN_HEADER,
    "key": _IN_HEADER,
}
_HEADERS: Final[Mapping[str, str]] = {
    "x-goog-encryption-": _KEYS,
    "x-goog-copy-source-encryption-": _KEYS,
    "x-goog-acl": _ACLS,
    "x-goog-storage-class": "another storage class than STANDARD is",
    "x-goog-meta-": "metadata in headers is",
    "x-goog-custom-time": "a time of one's own is",
}


def demand_known(query: Mapping[str, str], headers: Mapping[str, str], served: Collection[str]) -> None:
    """Refuse what the route does not read.

    Raises:
        NotServed: a parameter of the real API with a non-empty value.
        InvalidRequest: an unknown parameter, or an invalid value of an enumerated one.
    """
    for name, value in query.items():
        choices = _CHOICES.get(name)
        if choices is not None:
            if value.partition(";")[0] not in choices:
                raise InvalidRequest(
                    f"Invalid value for {name}: {value[:50]!r}; it is {' or '.join(sorted(choices))}.", field=name
                )
        elif name in served or name in _IDLE:
            continue
        elif name in ABSENT:
            if value not in ("", "0", "false"):
                raise not_served(name, ABSENT[name])
        else:
            raise InvalidRequest(
                f'Unknown name "{name[:100]}": this request has no such parameter; leave it out.', field=name[:100]
            )
    for name in headers:
        for head, what in _HEADERS.items():
            if name.lower().startswith(head):
                raise not_served(name, what)


def not_served(name: str, what: str) -> NotServed:
    """``what``: such as "retention is", with an alternative after a semicolon if leaving it out is not the advice."""
    thing, _, advice = what.partition("; ")
    return NotServed(f"{name}: {thing} not served by this platform; {advice or 'leave it out'}.", field=name)
