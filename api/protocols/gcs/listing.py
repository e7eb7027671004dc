"""Object lists, ordered by name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from api.protocols.gcs.buckets import Bucket
from api.protocols.kit.paging import page_token, token_parts
from core.domain.errors import InvalidRequest, NotFound, TrainmasterError
from core.storage.tree import DEPTH_LIMIT, Tree, TreeEntry
from core.storage.volumes import UPLOADS

PAGE_LIMIT: Final = 1_000


@dataclass(frozen=True, slots=True)
class ListOptions:
    """List options. ``after``: skip names up to and including it. ``first`` (inclusive), ``end`` (exclusive):
    bounds.
    """

    prefix: str = ""
    delimiter: str = ""
    first: str = ""
    end: str = ""
    after: str = ""
    limit: int = PAGE_LIMIT


@dataclass(slots=True)
class ObjectPage:
    """``token``: page token of the next page; empty on the last page."""

    items: list[tuple[str, TreeEntry]] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    token: str = ""


def list_objects(bucket: Bucket, query: ListOptions) -> ObjectPage:
    """One page of a bucket's objects. Reads only folders that can contain names of the page.

    A common prefix (``delimiter``) counts as one entry of the page.
    """
    if query.delimiter not in ("", "/"):
        raise InvalidRequest("delimiter: only / is served; objects are files in folders here.", field="delimiter")
    page, last = ObjectPage(), ""
    for name, entry in _walk(bucket, query):
        if not name.startswith(query.prefix) or name < query.first:
            continue
        if query.end and name >= query.end:
            break
        if name <= query.after:
            continue
        if len(page.items) + len(page.prefixes) >= query.limit:
            page.token = page_token(last)
            break
        if entry is None:
            page.prefixes.append(name)
        else:
            page.items.append((name, entry))
        last = name
    return page


def name_in_token(token: str) -> str:
    """The last name of the page before; empty without a token. Raises ``InvalidRequest``."""
    return str(token_parts(token, (str,))[0]) if token else ""


def _walk(bucket: Bucket, query: ListOptions) -> Iterator[tuple[str, TreeEntry | None]]:
    """Names in order with their entries; the entry of a common prefix is ``None``."""
    if bucket.within is not None:
        yield from _walk_folders(bucket, bucket.within, query)
        return
    if bucket.owners is None:
        yield from _below(bucket.tree(), "", "", query, 0)
        return
    for owner in sorted(bucket.owners, key=lambda name: f"{name}/"):
        head = f"{owner}/"
        if not _may_hold(head, query) or bucket.top.is_link(owner):
            continue
        if query.delimiter and len(head) > len(query.prefix):
            if bucket.top.exists(owner):
                yield head, None
            continue
        yield from _below(bucket.top.below(owner), "", head, query, 1)


def _walk_folders(
    bucket: Bucket, folders: frozenset[str], query: ListOptions
) -> Iterator[tuple[str, TreeEntry | None]]:
    """As ``_walk``, for a bucket of which only ``folders`` (disjoint) are visible."""
    last = ""
    for head in sorted(f"{folder}/" for folder in folders):
        if not _may_hold(head, query):
            continue
        if query.delimiter and len(head) > len(query.prefix):
            name = head[: head.index("/", len(query.prefix)) + 1]
            if name != last and bucket.tree().exists(head.rstrip("/")):
                last = name
                yield name, None
            continue
        yield from _below(bucket.tree().below(head.rstrip("/")), "", head, query, 1)


def _below(
    tree: Tree, folder: str, head: str, query: ListOptions, depth: int
) -> Iterator[tuple[str, TreeEntry | None]]:
    """Objects below ``folder``. ``head``: the folder's object name, empty or ending in a slash."""
    if depth > DEPTH_LIMIT:
        return
    for key, is_dir in _sorted_names(tree, folder, hides=not head):
        name = head + key
        path = f"{folder}/{key}" if folder else key
        if not is_dir:
            if name.startswith(query.prefix) and name > query.after:
                entry = _stat(tree, path)
                if entry is not None and not entry.is_dir:
                    yield name, entry
            continue
        if not _may_hold(name, query):
            continue
        if query.delimiter and len(name) > len(query.prefix):
            # Cloud Storage does not list folders without files.
            if next(_below(tree, path.rstrip("/"), name, ListOptions(prefix=name), depth + 1), None) is not None:
                yield name, None
            continue
        yield from _below(tree, path.rstrip("/"), name, query, depth + 1)


def _may_hold(folder: str, query: ListOptions) -> bool:
    """Whether names below ``folder`` (with its slash) can be on the page."""
    if not (folder.startswith(query.prefix) or query.prefix.startswith(folder)):
        return False
    # All names below the folder begin with its name, so they sort before names with a larger prefix.
    return folder >= query.after[: len(folder)] and (not query.end or folder < query.end)


def _sorted_names(tree: Tree, folder: str, *, hides: bool) -> list[tuple[str, bool]]:
    """(name, is a folder) of a folder's entries in object order (a folder's name has its slash).

    Skips links to folders, which could form cycles.
    """
    try:
        with tree.open_folder(folder) as fd, os.scandir(fd) as entries:
            names = []
            for entry in entries:
                is_draft = entry.name.startswith(".") and entry.name.endswith(".part")
                is_uploads = hides and entry.name == UPLOADS
                if is_draft or is_uploads or entry.name.encode("utf-8", "ignore") != os.fsencode(entry.name):
                    continue
                is_dir = entry.is_dir(follow_symlinks=False)
                if is_dir or entry.is_symlink() or stat.S_ISREG(_mode(entry)):
                    names.append((entry.name + ("/" if is_dir else ""), is_dir))
    except NotFound:
        return []
    return sorted(names)


def _mode(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return 0


def _stat(tree: Tree, path: str) -> TreeEntry | None:
    try:
        return tree.stat(path)
    except TrainmasterError:
        return None  # a link that leaves the volume, or a file that was deleted since
