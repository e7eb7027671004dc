"""Single objects: files of a bucket."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from api.app import audit
from api.files import media_type_of
from api.protocols.gcs.answers import ConditionNotMet, NotChanged
from api.protocols.gcs.buckets import Bucket, object_path
from api.protocols.gcs.checksums import Checksums, checksums_of
from api.protocols.kit.json_values import timestamp
from core.domain.errors import NotFound
from core.storage.tree import LeavesVolume, TreeEntry

# A checksum needs all bytes: larger files have checksums only in the response to their upload.
CHECKSUM_LIMIT_BYTES: Final = 64 * 2**20
METAGENERATION: Final = 1  # metadata never changes without the object


@dataclass(frozen=True, slots=True)
class Preconditions:
    """``ifGenerationMatch`` and similar; generation 0 means that the object does not exist. ``generation``: the
    requested one.
    """

    match: int | None = None
    not_match: int | None = None
    meta_match: int | None = None
    meta_not_match: int | None = None
    generation: int | None = None

    @property
    def must_be_new(self) -> bool:
        return self.match == 0

    def demand(self, entry: TreeEntry | None) -> None:
        """Raises ``ConditionNotMet``."""
        self._demand_match(entry)
        own = 0 if entry is None else generation_of(entry)
        if self.not_match == own or (self.meta_not_match is not None and entry is None) or self._is_known_by_meta:
            raise ConditionNotMet

    def demand_bucket(self) -> None:
        """As ``demand_read``, for a bucket, which has no generations."""
        if self.meta_match not in (None, METAGENERATION):
            raise ConditionNotMet
        if self._is_known_by_meta:
            raise NotChanged("Not modified.")

    def demand_read(self, entry: TreeEntry) -> None:
        """As ``demand``, for reading. Raises ``ConditionNotMet``, or its subclass ``NotChanged`` if the client is up to
        date.
        """
        self._demand_match(entry)
        if self.not_match == generation_of(entry) or self._is_known_by_meta:
            raise NotChanged("Not modified.")

    @property
    def _is_known_by_meta(self) -> bool:
        return self.meta_not_match == METAGENERATION

    def _demand_match(self, entry: TreeEntry | None) -> None:
        own = 0 if entry is None else generation_of(entry)
        if self.match is not None and self.match != own:
            raise ConditionNotMet
        if self.meta_match is not None and (entry is None or self.meta_match != METAGENERATION):
            raise ConditionNotMet


def generation_of(entry: TreeEntry) -> int:
    """Time of the last change in microseconds, as in Cloud Storage."""
    return entry.mtime_ns // 1_000


def find_object(bucket: Bucket, name: str) -> TreeEntry:
    """Raises ``NotFound``, also for a folder and for a link that leaves the volume."""
    try:
        tree, path = bucket.locate(object_path(name))
        entry = tree.stat(path)
    except LeavesVolume:
        raise object_not_found(bucket, name) from None
    except NotFound:
        raise object_not_found(bucket, name) from None
    if entry.is_dir != name.endswith("/"):
        raise object_not_found(bucket, name)
    return entry


def find_generation(bucket: Bucket, name: str, generation: int | None) -> TreeEntry:
    """As ``find_object``, of this generation if given; earlier generations are not stored."""
    entry = find_object(bucket, name)
    if generation is not None and generation != generation_of(entry):
        raise NotFound(f"No such object: {bucket.name}/{name}#{generation}")
    return entry


def etag_of(entry: TreeEntry) -> str:
    return f"{entry.inode:x}-{entry.size_bytes:x}-{entry.mtime_ns:x}"


def find_or_none(bucket: Bucket, name: str) -> TreeEntry | None:
    try:
        return find_object(bucket, name)
    except NotFound:
        return None


def object_not_found(bucket: Bucket, name: str) -> NotFound:
    return NotFound(f"No such object: {bucket.name}/{name}")


def open_object(bucket: Bucket, name: str) -> int:
    """A descriptor for reading; the caller closes it."""
    find_object(bucket, name)
    tree, path = bucket.locate(object_path(name))
    return tree.open_file(path)


def checksums_of_open_file(fd: int) -> Checksums | None:
    """``None``: the file is too large to be read for its checksums."""
    return checksums_of(fd) if os.fstat(fd).st_size <= CHECKSUM_LIMIT_BYTES else None


def checksums_of_object(bucket: Bucket, name: str) -> Checksums | None:
    fd = open_object(bucket, name)
    try:
        return checksums_of_open_file(fd)
    finally:
        os.close(fd)


def delete_object(bucket: Bucket, name: str, condition: Preconditions) -> None:
    audit.note_project(None, bucket.project_of(name))
    condition.demand(find_generation(bucket, name, condition.generation))
    tree, path = bucket.locate(object_path(name), makes=True)
    if name.endswith("/"):
        return  # folders are created and removed with their content
    tree.delete(path)


def object_view(bucket: Bucket, name: str, entry: TreeEntry, sums: Checksums | None, *, url: str) -> dict[str, Any]:
    """The object resource. ``url``: this server's base URL. ``sums``: ``None`` if unknown."""
    changed = timestamp(datetime.fromtimestamp(entry.mtime_ns / 1e9, UTC), "milliseconds")
    generation = str(generation_of(entry))
    place = f"{bucket.name}/o/{quote(name, safe='')}"
    hashes = {} if sums is None else {"crc32c": sums.crc32c, "md5Hash": sums.md5}
    return {
        "kind": "storage#object",
        "id": f"{bucket.name}/{name}/{generation}",
        "name": name,
        "bucket": bucket.name,
        "generation": generation,
        "metageneration": str(METAGENERATION),
        "contentType": media_type_of(name),
        "storageClass": "STANDARD",
        "size": str(entry.size_bytes),
        "etag": etag_of(entry),
        "timeCreated": changed,
        "updated": changed,
        "selfLink": f"{url}/storage/v1/b/{place}",
        "mediaLink": f"{url}/download/storage/v1/b/{place}?generation={generation}&alt=media",
        **hashes,
    }
