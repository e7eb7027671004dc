"""Validation of what a client sends: each query parameter, header and field of an object's metadata is served, ignored
without effect, or refused by its name.

https://cloud.google.com/storage/docs/json_api/v1/parameters
https://cloud.google.com/storage/docs/json_api/v1/objects#resource-representations
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from api.protocols.kit.errors import not_served, refuse_unknown
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


def refuse_unknown_parameters(query: Mapping[str, str], headers: Mapping[str, str], served: Collection[str]) -> None:
    """Refuse what the route does not read.

    Raises:
        NotServed: a parameter of the real API with a non-empty value.
        InvalidRequest: an unknown parameter, or an invalid value of an enumerated one.
    """
    for name, choices in _CHOICES.items():
        if name in query and query[name].partition(";")[0] not in choices:
            listed = " or ".join(sorted(choices))
            raise InvalidRequest(f"Invalid value for {name}: {query[name][:50]!r}; it is {listed}.", field=name)
    refuse_unknown(
        query,
        {*served, *_IDLE, *_CHOICES},
        ABSENT,
        empty=("", "0", "false"),
        unknown=lambda name: InvalidRequest(
            f'Unknown name "{name[:100]}": this request has no such parameter; leave it out.', field=name[:100]
        ),
    )
    for name in headers:
        for head, what in _HEADERS.items():
            if name.lower().startswith(head):
                raise not_served(name, what)


# --- metadata of objects ---------------------------------------------------------------------------------------------

_SERVED: Final = frozenset({"name", "bucket", "crc32c", "md5Hash", "contentType", "storageClass"})
# Output-only fields: a client that sends back a resource that it read sends these, too.
_OUTPUT: Final = frozenset(
    {"componentCount", "customerEncryption", "etag", "generation", "hardDeleteTime", "id", "kind", "mediaLink"}
    | {"metageneration", "owner", "restoreToken", "retentionExpirationTime", "selfLink", "size", "softDeleteTime"}
    | {"timeCreated", "timeDeleted", "timeFinalized", "timeStorageClassUpdated", "updated"}
)
_ABSENT: Final[Mapping[str, str]] = {
    "acl": _ACLS,
    "cacheControl": "cache control is; responses are never cached",
    "contentDisposition": "a content disposition is",
    "contentEncoding": "another encoding than the object's own bytes is; a bucket's objects are files that jobs read "
    "as they are",
    "contentLanguage": "a content language is",
    "contexts": "contexts are",
    "customTime": "a time of one's own is",
    "eventBasedHold": "holding objects is",
    "kmsKeyName": _KEYS,
    "metadata": "metadata of one's own is; put it into the object, or into an object next to it",
    "retention": "retention is",
    "temporaryHold": "holding objects is",
}
_CLASSES: Final = frozenset(
    {"NEARLINE", "COLDLINE", "ARCHIVE", "MULTI_REGIONAL", "REGIONAL", "DURABLE_REDUCED_AVAILABILITY", "RAPID"}
)


def demand_served(metadata: Mapping[str, Any], bucket: str) -> None:
    """Refuse fields that would be dropped silently.

    Raises:
        NotServed: a field of Cloud Storage with a non-empty value that objects here do not have.
        InvalidRequest: an unknown field, or one that contradicts the address.
    """
    refuse_unknown(
        metadata,
        _SERVED | _OUTPUT,
        _ABSENT,
        empty=(None, "", False, [], {}),
        unknown=lambda name: InvalidRequest(
            f'Invalid JSON payload received. Unknown name "{name[:100]}": Cannot find field.', field=name[:100]
        ),
    )
    if metadata.get("bucket") not in (None, "", bucket):
        raise InvalidRequest(f"bucket: the object's metadata names another one than {bucket}.", field="bucket")
    _demand_class(metadata.get("storageClass"))


def _demand_class(value: Any) -> None:
    if value in (None, "", "STANDARD"):
        return
    if isinstance(value, str) and value in _CLASSES:
        raise not_served("storageClass", f"{value} is")
    raise InvalidRequest(
        f"Invalid argument: storageClass {str(value)[:50]!r} is none; STANDARD is.", field="storageClass"
    )
