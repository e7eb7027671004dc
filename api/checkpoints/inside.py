"""What is inside of checkpoints: lists of tensors, their figures, and how far two are apart; page by page."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

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
from api.checkpoints.figures import Figures
from api.checkpoints.refusals import Refusals
from api.http.cursors import bad_cursor, make_cursor, read_cursor
from core.domain.errors import InvalidRequest
from core.inspection.discovery import landed_at, signature
from core.inspection.layers import of_layers
from core.inspection.pool import Inspectors, Place
from core.storage.outputs import job_output

# A page of figures is answered after about so long, with what there is until then.
_BUDGET_S: Final = 1.5
_LISTS: Final = 8
_LIST_TENSORS: Final = 100_000  # of all lists that are kept in memory


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint as it was a moment ago. ``key`` is another one when its files have changed."""

    place: Place
    key: str
    inside: Mapping[str, Any]

    @property
    def tensors(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.inside["tensors"]
        return found


class Insides:
    """The processes that look, and what they saw. Lives as long as the application."""

    def __init__(self, folder: Path) -> None:
        self.inspectors = Inspectors()
        self.figures = Figures(folder)
        self._lists: OrderedDict[str, Opened] = OrderedDict()
        self.refusals = Refusals()
        self._lock = threading.Lock()

    def close(self) -> None:
        self.inspectors.close()

    def open(self, context: AppContext, access: JobAccess, path: str) -> Opened:
        """What is at ``path`` in the job's output.

        Raises:
            NotFound: there is no checkpoint.
            CheckpointUnreadable: it cannot be looked into.
        """
        with context.read() as work:
            tree = job_output(work.session, access.load(work.session))
        landed = landed_at(tree, path)
        place = Place(tree, landed.path)
        about = place.to_json()
        key = "\0".join((about["root"], about["base"], landed.path, signature(tree, landed)))
        with self._lock:
            known = self._lists.get(key)
            if known is not None:
                self._lists.move_to_end(key)
                return known
        with self.refusals.heeded(key):
            opened = Opened(place, key, self.inspectors.inside(place, who=access.caller.user_id))
        with self._lock:
            self._lists[key] = opened
            while len(self._lists) > 1 and (
                len(self._lists) > _LISTS or sum(len(one.tensors) for one in self._lists.values()) > _LIST_TENSORS
            ):
                self._lists.popitem(last=False)
        return opened


def tensor_page(
    opened: Opened, *, search: str, kind: Literal["weight", "optimizer"] | None, cursor: str | None, limit: int
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
        format=opened.inside["format"],
        tensor_count=len(opened.tensors),
        found_count=len(found),
        weight_count=sum(tensor["count"] for tensor in weights),
        weight_bytes=sum(tensor["size_bytes"] or 0 for tensor in weights),
        optimizer_bytes=sum(tensor["size_bytes"] or 0 for tensor in opened.tensors if tensor["is_optimizer"]),
        values=opened.inside["values"],
        notes=opened.inside["notes"],
    )


def statistics_page(
    insides: Insides, opened: Opened, *, who: str, names: list[str], cursor: str | None, limit: int
) -> Page[TensorStatistics]:
    """The figures of the tensors ``names``, asked for by ``who``; of all where it is empty; as many as can be had in a moment."""
    every = [tensor["name"] for tensor in opened.tensors]
    if unknown := set(names) - set(every):
        raise InvalidRequest(f"tensor: {min(unknown)!r} is not in this checkpoint.", field="tensor")
    wanted = names or every
    start = _start(cursor)
    asked = wanted[start : start + limit]
    known = insides.figures.get(opened.key)
    with insides.refusals.heeded("\0".join((opened.key, *asked))):
        items = _known_or_new(
            asked, known, lambda left: insides.inspectors.statistics(opened.place, left, who=who, budget_s=_BUDGET_S)
        )
    fresh = [item for item in items if item["name"] not in known]
    if fresh:
        insides.figures.add(opened.key, fresh)
    views = [TensorStatistics.model_validate(item) for item in items]
    return Page(items=views, next_cursor=_next(start + len(items), len(wanted)))


def difference_page(
    insides: Insides, before: Opened, after: Opened, *, who: str, cursor: str | None, limit: int
) -> DifferencePage:
    """How far two are apart; as many tensors as can be had in a moment."""
    rows = _pairs(before, after)
    counts = {
        change: sum(row["change"] == change for row in rows) for change in ("appeared", "went", "reshaped", "both")
    }
    start = _start(cursor)
    asked = rows[start : start + limit]
    key = f"{before.key}\0{after.key}"
    known = insides.figures.get(key)
    names = [row["name"] for row in asked if row["change"] == "both"]
    with insides.refusals.heeded("\0".join((key, *names))):
        new = _known_or_new(
            names,
            known,
            lambda left: insides.inspectors.differences(before.place, after.place, left, who=who, budget_s=_BUDGET_S),
        )
    found = {item["name"]: item for item in new}
    fresh = [item for name, item in found.items() if name not in known]
    if fresh:
        insides.figures.add(key, fresh)
    items: list[dict[str, Any]] = []
    for row in asked:
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
        appeared_count=counts["appeared"],
        went_count=counts["went"],
        reshaped_count=counts["reshaped"],
        common_count=counts["both"],
        layers=None if layers is None else [LayerDifference.model_validate(layer) for layer in layers],
    )


def _known_or_new(
    names: list[str], known: Mapping[str, Any], ask: Callable[[list[str]], Iterable[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The figures of ``names`` in order: those that are known, and then as many new ones as come in time."""
    left = [name for name in names if name not in known]
    new = {item["name"]: item for item in ask(left)} if left else {}
    found = []
    for name in names:
        item = known.get(name) or new.get(name)
        if item is None:
            break
        found.append(item)
    return found


def _pairs(before: Opened, after: Opened) -> list[dict[str, Any]]:
    """Every tensor of both, with what its shapes tell: first those that are not in both alike."""
    ones = {tensor["name"]: tensor for tensor in before.tensors}
    others = {tensor["name"]: tensor for tensor in after.tensors}
    rows = []
    for name in [*ones, *(name for name in others if name not in ones)]:
        one, other = ones.get(name), others.get(name)
        some = one or other or {}
        if one is None:
            change = "appeared"
        elif other is None:
            change = "went"
        else:
            change = "both" if one["shape"] == other["shape"] else "reshaped"
        rows.append(
            {
                "name": name,
                "layer": some["layer"],
                "is_optimizer": some["is_optimizer"],
                "change": change,
                "shape_before": one and one["shape"],
                "shape_after": other and other["shape"],
                "dtype_before": one and one["dtype"],
                "dtype_after": other and other["dtype"],
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
