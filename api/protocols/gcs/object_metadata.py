"""Validation of the object metadata that a client sends: each field is served, output-only, or refused.

https://cloud.google.com/storage/docs/json_api/v1/objects#resource-representations
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.protocols.gcs.parameters import not_served
from core.domain.errors import InvalidRequest

_SERVED: Final = frozenset({"name", "bucket", "crc32c", "md5Hash", "contentType", "storageClass"})
# Output-only fields: a client that sends back a resource that it read sends these, too.
_OUTPUT: Final = frozenset(
    {"componentCount", "customerEncryption", "etag", "generation", "hardDeleteTime", "id", "kind", "mediaLink"}
    | {"metageneration", "owner", "restoreToken", "retentionExpirationTime", "selfLink", "size", "softDeleteTime"}
    | {"timeCreated", "timeDeleted", "timeFinalized", "timeStorageClassUpdated", "updated"}
)
_ABSENT: Final[Mapping[str, str]] = {
    "acl": "access lists are; who may use a bucket is told by projects and their members",
    "cacheControl": "cache control is; responses are never cached",
    "contentDisposition": "a content disposition is",
    "contentEncoding": "another encoding than the object's own bytes is; a bucket's objects are files that jobs read "
    "as they are",
    "contentLanguage": "a content language is",
    "contexts": "contexts are",
    "customTime": "a time of one's own is",
    "eventBasedHold": "holding objects is",
    "kmsKeyName": "keys of one's own are",
    "metadata": "metadata of one's own is; put it into the object, or into an object next to it",
    "retention": "retention is",
    "temporaryHold": "holding objects is",
}
_CLASSES: Final = frozenset(
    {"NEARLINE", "COLDLINE", "ARCHIVE", "MULTI_REGIONAL", "REGIONAL", "DURABLE_REDUCED_AVAILABILITY", "RAPID"}
)
_NOTHING: Final[tuple[Any, ...]] = (None, "", False, [], {})


def demand_served(metadata: Mapping[str, Any], bucket: str) -> None:
    """Refuse fields that would be dropped silently.

    Raises:
        NotServed: a field of Cloud Storage with a non-empty value that objects here do not have.
        InvalidRequest: an unknown field, or one that contradicts the address.
    """
    for name, value in metadata.items():
        if name in _ABSENT:
            if value not in _NOTHING:
                raise not_served(name, _ABSENT[name])
        elif name not in _SERVED and name not in _OUTPUT:
            raise InvalidRequest(
                f'Invalid JSON payload received. Unknown name "{name[:100]}": Cannot find field.', field=name[:100]
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
