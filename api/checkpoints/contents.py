"""Inspection of checkpoints, page by page: lists of tensors, their statistics, and the difference of two."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson
import structlog
from trainmaster.wire.base import Page
from trainmaster.wire.checkpoints import (
    DifferencePage,
    LayerDifference,
    TensorDifference,
    TensorPage,
    TensorStatistics,
    TensorView,
)

from api.app.unit_of_work import AppContext
from api.auth import JobAccess
from api.http.paging import bad_cursor, make_cursor, read_cursor
from api.volumes.access import readable_output
from core.domain.errors import CheckpointUnreadable, InvalidRequest
from core.inspection.discovery import checkpoint_at, signature
from core.inspection.layers import of_layers
from core.inspection.pool import CheckpointRef, Inspectors

log = structlog.get_logger(__name__)

# Failures expire: a loaded machine may time out on a checkpoint that an idle one can read.
_FAILURE_TTL_S: Final = 600.0
_FAILURE_LIMIT: Final = 1_000
_DISK_LIMIT_BYTES: Final = 256 * 2**20
_MEMORY_LIMIT_FILES: Final = 4
# A page of statistics is answered after about this time, with those computed until then.
_BUDGET_S: Final = 1.5
_LIST_LIMIT: Final = 8
_TENSOR_LIMIT: Final = 100_000  # of all lists in memory together


class UnreadableCache:
    """Failed inspections, by a key that changes with the files: the same files fail again without a new inspection.

    Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, CheckpointUnreadable]] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def remember_failure(self, key: str) -> Iterator[None]:
        """Wrap an inspection, which may fail only after half a minute. Raises a remembered ``CheckpointUnreadable``."""
        with self._lock:
            known = self._failures.get(key)
        if known is not None and self._clock() < known[0]:
            raise CheckpointUnreadable(known[1].sentence, field=known[1].field)
        try:
            yield
        except CheckpointUnreadable as error:
            with self._lock:
                self._failures[key] = (self._clock() + _FAILURE_TTL_S, error)
                self._failures.move_to_end(key)
                while len(self._failures) > _FAILURE_LIMIT:
                    self._failures.popitem(last=False)
            raise


class StatisticsCache:
    """Tensor statistics computed before, in files of JSON lines, by a key that changes with the checkpoint's files.

    Only a cache: damaged or deleted entries are computed again. Thread-safe, and safe for several processes, since
    lines are only appended.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._read: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def get(self, key: str) -> Mapping[str, Any]:
        """The cached statistics by the name of the tensor."""
        name = _name(key)
        with self._lock:
            if name not in self._read:
                self._read[name] = self._load(name)
                if len(self._read) > _MEMORY_LIMIT_FILES:
                    self._read.popitem(last=False)
            self._read.move_to_end(name)
            return dict(self._read[name])

    def add(self, key: str, items: list[dict[str, Any]]) -> None:
        name = _name(key)
        with self._lock:
            if name in self._read:
                self._read[name] |= {item["name"]: item for item in items}
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                path = self._folder / name
                if not path.exists():
                    self._make_room()
                with path.open("ab") as file:
                    file.write(b"".join(orjson.dumps(item, option=orjson.OPT_APPEND_NEWLINE) for item in items))
            except OSError as error:
                log.warning("checkpoint.statistics_not_cached", why=str(error))

    def _load(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        try:
            with (self._folder / name).open("rb") as file:
                for line in file:
                    try:
                        item = orjson.loads(line)
                        found[item["name"]] = item
                    except (ValueError, LookupError, TypeError):
                        continue  # truncated by a crash
        except OSError:
            pass
        return found

    def _make_room(self) -> None:
        files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(self._folder))
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= _DISK_LIMIT_BYTES:
                return
            Path(path).unlink(missing_ok=True)
            total -= size


def _name(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest() + ".jsonl"


@dataclass(frozen=True, slots=True)
class InspectedCheckpoint:
    """The content list of a checkpoint. ``key`` changes when its files change."""

    place: CheckpointRef
    key: str
    contents: Mapping[str, Any]

    @property
    def tensors(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.contents["tensors"]
        return found


class CheckpointInspector:
    """The inspecting processes and the caches of their results. Lives as long as the application."""

    def __init__(self, folder: Path) -> None:
        self.inspectors = Inspectors()
        self.statistics = StatisticsCache(folder)
        self._lists: OrderedDict[str, InspectedCheckpoint] = OrderedDict()
        self.unreadable = UnreadableCache()
        self._lock = threading.Lock()

    def close(self) -> None:
        self.inspectors.close()

    def open(self, context: AppContext, access: JobAccess, path: str) -> InspectedCheckpoint:
        """The checkpoint at ``path`` in the job's output.

        Raises:
            NotFound: there is no checkpoint.
            CheckpointUnreadable: it cannot be inspected.
        """
        tree = readable_output(context, access)
        landed = checkpoint_at(tree, path)
        place = CheckpointRef(tree, landed.path)
        about = place.to_json()
        key = "\0".join((about["root"], about["base"], landed.path, signature(tree, landed)))
        with self._lock:
            known = self._lists.get(key)
            if known is not None:
                self._lists.move_to_end(key)
                return known
        with self.unreadable.remember_failure(key):
            opened = InspectedCheckpoint(place, key, self.inspectors.contents(place, caller=access.caller.user_id))
        with self._lock:
            self._lists[key] = opened
            while len(self._lists) > 1 and (
                len(self._lists) > _LIST_LIMIT
                or sum(len(listed.tensors) for listed in self._lists.values()) > _TENSOR_LIMIT
            ):
                self._lists.popitem(last=False)
        return opened


def tensor_page(
    opened: InspectedCheckpoint,
    *,
    search: str,
    kind: Literal["weight", "optimizer"] | None,
    cursor: str | None,
    limit: int,
) -> TensorPage:
    found = [
        tensor
        for tensor in opened.tensors
        if search.lower() in tensor["name"].lower()
        and (kind is None or tensor["is_optimizer"] == (kind == "optimizer"))
    ]
    start = _start(cursor)
    weights = [tensor for tensor in opened.tensors if not tensor["is_optimizer"]]
    return TensorPage(
        items=[_tensor_view(tensor) for tensor in found[start : start + limit]],
        next_cursor=_next(start + limit, len(found)),
        format=opened.contents["format"],
        tensor_count=len(opened.tensors),
        found_count=len(found),
        weight_count=sum(tensor["count"] for tensor in weights),
        weight_bytes=sum(tensor["size_bytes"] or 0 for tensor in weights),
        optimizer_bytes=sum(tensor["size_bytes"] or 0 for tensor in opened.tensors if tensor["is_optimizer"]),
        values=opened.contents["values"],
        notes=opened.contents["notes"],
    )


def statistics_page(
    inspector: CheckpointInspector,
    opened: InspectedCheckpoint,
    *,
    caller: str,
    names: list[str],
    cursor: str | None,
    limit: int,
) -> Page[TensorStatistics]:
    """Statistics of the tensors ``names``, or of all where it is empty; as many as fit the time budget.

    ``caller``: the user id; the pool of inspectors is shared fairly among users.
    """
    every = [tensor["name"] for tensor in opened.tensors]
    if unknown := set(names) - set(every):
        raise InvalidRequest(f"tensor: {min(unknown)!r} is not in this checkpoint.", field="tensor")
    wanted = names or every
    start = _start(cursor)
    page_names = wanted[start : start + limit]
    known = inspector.statistics.get(opened.key)
    with inspector.unreadable.remember_failure("\0".join((opened.key, *page_names))):
        items = _known_or_new(
            page_names,
            known,
            lambda left: inspector.inspectors.statistics(opened.place, left, caller=caller, budget_s=_BUDGET_S),
        )
    fresh = [item for item in items if item["name"] not in known]
    if fresh:
        inspector.statistics.add(opened.key, fresh)
    views = [TensorStatistics.model_validate(item) for item in items]
    return Page(items=views, next_cursor=_next(start + len(items), len(wanted)))


def difference_page(
    inspector: CheckpointInspector,
    before: InspectedCheckpoint,
    after: InspectedCheckpoint,
    *,
    caller: str,
    cursor: str | None,
    limit: int,
) -> DifferencePage:
    """The difference of two checkpoints; as many tensors as fit the time budget."""
    rows = _pairs(before, after)
    counts = {
        change: sum(row["change"] == change for row in rows) for change in ("added", "removed", "reshaped", "both")
    }
    start = _start(cursor)
    page_rows = rows[start : start + limit]
    key = f"{before.key}\0{after.key}"
    known = inspector.statistics.get(key)
    names = [row["name"] for row in page_rows if row["change"] == "both"]
    with inspector.unreadable.remember_failure("\0".join((key, *names))):
        new = _known_or_new(
            names,
            known,
            lambda left: inspector.inspectors.differences(
                before.place, after.place, left, caller=caller, budget_s=_BUDGET_S
            ),
        )
    found = {item["name"]: item for item in new}
    fresh = [item for name, item in found.items() if name not in known]
    if fresh:
        inspector.statistics.add(key, fresh)
    items: list[dict[str, Any]] = []
    for row in page_rows:
        if row["change"] == "both" and row["name"] not in found:
            break  # the next page begins here
        items.append({**row, **found.get(row["name"], {})})
    end = start + len(items)
    layers = None
    if end >= len(rows):
        every = {**known, **found}
        layers = of_layers([{**row, **every[row["name"]]} for row in rows if row["name"] in every])
    return DifferencePage(
        items=[_difference_view(item) for item in items],
        next_cursor=_next(end, len(rows)),
        added_count=counts["added"],
        removed_count=counts["removed"],
        reshaped_count=counts["reshaped"],
        common_count=counts["both"],
        layers=None if layers is None else [LayerDifference.model_validate(layer) for layer in layers],
    )


def _known_or_new(
    names: list[str], known: Mapping[str, Any], compute: Callable[[list[str]], Iterable[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The results for ``names`` in order, cached or computed, up to the first that was not computed in time."""
    left = [name for name in names if name not in known]
    new = {item["name"]: item for item in compute(left)} if left else {}
    found = []
    for name in names:
        item = known.get(name) or new.get(name)
        if item is None:
            break
        found.append(item)
    return found


def _pairs(before: InspectedCheckpoint, after: InspectedCheckpoint) -> list[dict[str, Any]]:
    """Every tensor of either checkpoint with the change of its shape; those that are equal in shape come last."""
    old_tensors = {tensor["name"]: tensor for tensor in before.tensors}
    new_tensors = {tensor["name"]: tensor for tensor in after.tensors}
    rows = []
    for name in [*old_tensors, *(name for name in new_tensors if name not in old_tensors)]:
        old, new = old_tensors.get(name), new_tensors.get(name)
        either = old or new or {}
        if old is None:
            change = "added"
        elif new is None:
            change = "removed"
        else:
            change = "both" if old["shape"] == new["shape"] else "reshaped"
        rows.append(
            {
                "name": name,
                "layer": either["layer"],
                "is_optimizer": either["is_optimizer"],
                "change": change,
                "shape_before": old and old["shape"],
                "shape_after": new and new["shape"],
                "dtype_before": old and old["dtype"],
                "dtype_after": new and new["dtype"],
            }
        )
    return sorted(rows, key=lambda row: row["change"] == "both")


def _tensor_view(tensor: Mapping[str, Any]) -> TensorView:
    return TensorView(kind=_kind(tensor), **{key: value for key, value in tensor.items() if key != "is_optimizer"})


def _difference_view(item: Mapping[str, Any]) -> TensorDifference:
    return TensorDifference(kind=_kind(item), **{key: value for key, value in item.items() if key != "is_optimizer"})


def _kind(item: Mapping[str, Any]) -> Literal["weight", "optimizer"]:
    return "optimizer" if item["is_optimizer"] else "weight"


def _start(cursor: str | None) -> int:
    if cursor is None:
        return 0
    (start,) = read_cursor(cursor, (int,))
    if start < 0:
        raise bad_cursor()
    return int(start)


def _next(end: int, count: int) -> str | None:
    return make_cursor(end) if end < count else None
