"""What a training goes on from when its world changes."""

from __future__ import annotations

import copy
from typing import Any, Dict

from trainmaster_train.elastic.group import WorldChanged
from trainmaster_train.elastic.worlds import is_elastic, newest_number


class State:
    """Named parts of a training: whatever has ``state_dict`` and ``load_state_dict``, and plain values.

    Each is an attribute (``state.model``, ``state.step``). :meth:`commit` keeps a copy in memory; when a peer is lost, all go
    back to the newest commit that any of them has, and whoever joins gets it from there.
    """

    def __init__(self, **parts: Any) -> None:
        self._names = tuple(parts)
        self._saved: Dict[str, Any] = {}
        self._commits = 0
        self._world = 0
        for name, part in parts.items():
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(f"{name}: choose another name, this one is the state's own")
            setattr(self, name, part)

    def commit(self) -> None:
        """Keep all parts as they are now, and look whether the world has changed. Every rank calls it after the same step.

        Raises:
            WorldChanged: to be let through; ``run`` goes on in the new world from here.
        """
        self._save()
        if self._has_changed():
            raise WorldChanged

    def check(self) -> None:
        """The same without a copy, for steps between commits. Every rank calls it after the same step.

        Raises:
            WorldChanged: as of :meth:`commit`; only then the state is kept.
        """
        if self._has_changed():
            self._save()
            raise WorldChanged

    def _has_changed(self) -> bool:
        return is_elastic() and _newest_known(newest_number()) > self._world

    def restore(self) -> None:
        """Go back to the last commit; without any, nothing changes."""
        for name, saved in self._saved.items():
            part = getattr(self, name)
            if _is_stateful(part):
                part.load_state_dict(copy.deepcopy(saved))
            else:
                setattr(self, name, copy.deepcopy(saved))

    def sync(self, world_number: int) -> None:
        """Give every rank the newest commit of all. Every rank calls it, first thing in a world."""
        import torch.distributed as dist

        self._world = world_number
        if not self._commits:
            self._save()
            self._commits = 0  # how it was made, before any step: whoever has trained has more
        counts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(counts, self._commits)
        newest = max(counts)
        if min(counts) == newest and newest > 0:
            return
        source = counts.index(newest)
        box = [(self._saved, newest) if dist.get_rank() == source else None]
        dist.broadcast_object_list(box, src=source)
        if dist.get_rank() != source and box[0] is not None:
            self._saved, self._commits = box[0]
            self.restore()

    def _save(self) -> None:
        saved = {}
        for name in self._names:
            part = getattr(self, name)
            saved[name] = copy.deepcopy(part.state_dict() if _is_stateful(part) else part)
        # Whole or not at all: an interrupt in between must not leave half of two commits.
        self._saved, self._commits = saved, self._commits + 1


def _is_stateful(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _newest_known(number: int) -> int:
    """The largest number that any rank knows, so that all leave after the same step."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    newest = torch.tensor([number], dtype=torch.int64, device=device)
    dist.all_reduce(newest, op=dist.ReduceOp.MAX)
    return int(newest.item())
