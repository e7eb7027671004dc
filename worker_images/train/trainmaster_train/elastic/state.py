"""The state from which a training continues when its world changes."""

from __future__ import annotations

import copy
from typing import Any, Dict

from trainmaster_train.elastic.group import WorldChanged
from trainmaster_train.elastic.worlds import is_elastic, newest_number


class State:
    """Named parts of a training: objects with ``state_dict`` and ``load_state_dict``, and plain values.

    Each is an attribute (``state.model``, ``state.step``). :meth:`commit` copies them in memory; when a peer is lost,
    all ranks go back to the newest commit of any of them, and a new rank receives it from there.
    """

    def __init__(self, **parts: Any) -> None:
        self._names = tuple(parts)
        self._saved: Dict[str, Any] = {}
        self._commits = 0
        self._world = 0
        for name, part in parts.items():
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(f"{name}: choose another name, this one is reserved")
            setattr(self, name, part)

    def commit(self) -> None:
        """Copy all parts, and check whether the world has changed. Every rank calls it after the same step.

        Raises:
            WorldChanged: do not catch it; ``run`` continues in the new world from here.
        """
        self._save()
        if self._has_changed():
            raise WorldChanged

    def check(self) -> None:
        """As :meth:`commit` without a copy, for steps between commits. Every rank calls it after the same step.

        Raises:
            WorldChanged: as :meth:`commit`; only then the state is copied.
        """
        if self._has_changed():
            self._save()
            raise WorldChanged

    def _has_changed(self) -> bool:
        return is_elastic() and _newest_known(newest_number()) > self._world

    def restore(self) -> None:
        """Go back to the last commit, if there is one."""
        for name, saved in self._saved.items():
            part = getattr(self, name)
            if _is_stateful(part):
                part.load_state_dict(copy.deepcopy(saved))
            else:
                setattr(self, name, copy.deepcopy(saved))

    def sync(self, world_number: int) -> None:
        """Give every rank the newest commit of all. Every rank calls it first in a world."""
        import torch.distributed as dist

        self._world = world_number
        if not self._commits:
            self._save()
            self._commits = 0  # the initial state, before any step: a rank that has trained has more commits
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
        # Atomic: an interrupt must not leave a mixture of two commits.
        self._saved, self._commits = saved, self._commits + 1


def _is_stateful(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _newest_known(number: int) -> int:
    """The newest world number that any rank knows, so that all leave after the same step."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    newest = torch.tensor([number], dtype=torch.int64, device=device)
    dist.all_reduce(newest, op=dist.ReduceOp.MAX)
    return int(newest.item())
