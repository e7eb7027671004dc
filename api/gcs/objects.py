"""Objects: files of a bucket, one by one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from api.files.service import media_type_of
from api.gcs.answers import ConditionNotMet
from api.gcs.buckets import Bucket, object_path
from api.gcs.checksums import Checksums, checksums_of
from core.domain.errors import NotFound
from core.storage.tree import Entry, LeavesVolume

# A checksum is of all bytes: those of a larger file are told only when it was just written.
CHECKED_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Condition:
    """``ifGenerationMatch`` and ``ifGenerationNotMatch``; 0 is an object that is not there."""

    match: int | None = None
    not_match: int | None = None

    @property
    def is_new_alone(self) -> bool:
        return self.match == 0

    def demand(self, entry: Entry | None) -> None:
        """Raises ``ConditionNotMet``."""
        own = 0 if entry is None else generation_of(entry)
        if (self.match is not None and self.match != own) or (self.not_match is not None and self.not_match == own):
            raise ConditionNotMet("At least one of the pre-conditions you specified did not hold.")


def generation_of(entry: Entry) -> int:
    """Microseconds of its last change, as Cloud Storage's are."""
    return entry.mtime_ns // 1_000


def find_object(bucket: Bucket, name: str) -> Entry:
    """Raises ``NotFound``, also for a folder and for a link that leads out."""
    try:
        tree, path = bucket.place(object_path(name))
        entry = tree.stat(path)
    except LeavesVolume:
        raise missing(bucket, name) from None
    except NotFound:
        raise missing(bucket, name) from None
    if entry.is_dir != name.endswith("/"):
        raise missing(bucket, name)
    return entry


def find_or_none(bucket: Bucket, name: str) -> Entry | None:
    try:
        return find_object(bucket, name)
    except NotFound:
        return None


def missing(bucket: Bucket, name: str) -> NotFound:
    return NotFound(f"No such object: {bucket.name}/{name}")


def open_object(bucket: Bucket, name: str) -> int:
    """A descriptor for reading; the caller closes it."""
    find_object(bucket, name)
    tree, path = bucket.place(object_path(name))
    return tree.open_file(path)


def sums_of_open(fd: int) -> Checksums | None:
    """``None``: it is too large to be read for that."""
    return checksums_of(fd) if os.fstat(fd).st_size <= CHECKED_BYTES else None


def sums_of(bucket: Bucket, name: str) -> Checksums | None:
    fd = open_object(bucket, name)
    try:
        return sums_of_open(fd)
    finally:
        os.close(fd)


def delete_object(bucket: Bucket, name: str, condition: Condition) -> None:
    condition.demand(find_object(bucket, name))
    tree, path = bucket.place(object_path(name), makes=True)
    if name.endswith("/"):
        return  # folders are made and go with what is in them
    tree.delete(path)


def object_view(bucket: Bucket, name: str, entry: Entry, sums: Checksums | None, *, url: str) -> dict[str, Any]:
    """``url``: where the client reaches us. ``sums`` are left out where nobody knows them."""
    changed = (
        datetime.fromtimestamp(entry.mtime_ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
    generation = str(generation_of(entry))
    place = f"{bucket.name}/o/{quote(name, safe='')}"
    told = {} if sums is None else {"crc32c": sums.crc32c, "md5Hash": sums.md5}
    return {
        "kind": "storage#object",
        "id": f"{bucket.name}/{name}/{generation}",
        "name": name,
        "bucket": bucket.name,
        "generation": generation,
        "metageneration": "1",
        "contentType": media_type_of(name),
        "storageClass": "STANDARD",
        "size": str(entry.size_bytes),
        "etag": f"{entry.inode:x}-{entry.mtime_ns:x}",
        "timeCreated": changed,
        "updated": changed,
        "selfLink": f"{url}/storage/v1/b/{place}",
        "mediaLink": f"{url}/download/storage/v1/b/{place}?generation={generation}&alt=media",
        **told,
    }
