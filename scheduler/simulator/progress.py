"""Progress of a simulated job: work done, work lost to preemptions, restart costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scheduler.simulator.reading.arrival import Arrival


@dataclass(slots=True)
class Progress:
    """Seconds of work; one second is what the job does in a second with its maximum of replicas.

    ``restart_left_s``: remaining time of its present restart. ``checkpoint_every_s``: ``None`` if a preempted job
    writes a checkpoint in its grace period and loses nothing.
    """

    arrival: Arrival
    checkpoint_every_s: float | None = None
    done_s: float = 0.0
    restart_left_s: float = 0.0
    attained_gpu_s: float = 0.0
    speed: float = 0.0  # 0: not running
    rate: float = 0.0  # GPUs held; 1 for a gang without GPUs
    ran_s: float = 0.0  # working time of all attempts in seconds, without restarts
    held_s: float = 0.0  # time of holding resources in all attempts, in seconds
    now_s: float = 0.0
    lost_s: float = 0.0  # repeated work in total
    starts: int = 0

    def advance(self, to_s: float) -> None:
        past_s = to_s - self.now_s
        self.now_s = to_s
        if self.speed <= 0 or past_s <= 0:
            return
        self.held_s += past_s
        self.attained_gpu_s += past_s * self.rate
        paid_s = min(self.restart_left_s, past_s)
        self.restart_left_s -= paid_s
        self.ran_s += past_s - paid_s
        self.done_s = min(self.arrival.duration_s, self.done_s + (past_s - paid_s) * self.speed)

    def start(self, at_s: float, *, speed: float, rate: float, cost_s: float) -> None:
        """Run from now on; a start after the first costs ``cost_s``."""
        self.advance(at_s)
        self.restart_left_s = cost_s if self.starts else 0.0
        self.starts += 1
        self.speed, self.rate = speed, rate

    def resize(self, at_s: float, *, speed: float, rate: float, cost_s: float) -> None:
        """Continue with more or fewer replicas."""
        self.advance(at_s)
        self.restart_left_s = max(self.restart_left_s, cost_s)
        self.speed, self.rate = speed, rate

    def stop(self, at_s: float) -> None:
        """Preempted: work since the last checkpoint is lost."""
        self.advance(at_s)
        lost_s = self.unsaved_s
        self.lost_s += lost_s
        self.done_s -= lost_s
        self.speed = self.rate = 0.0

    @property
    def unsaved_s(self) -> float:
        """Work since the last checkpoint."""
        every_s = self.checkpoint_every_s
        return math.fmod(self.done_s, every_s) if every_s else 0.0

    @property
    def remaining_s(self) -> float:
        """Work that is left."""
        return self.arrival.duration_s - self.done_s

    @property
    def ends_s(self) -> float:
        """When it ends if nothing changes."""
        return self.now_s + self.restart_left_s + self.remaining_s / self.speed if self.speed > 0 else math.inf

    def ran_by_s(self, run_s: float) -> float:
        """When it will have worked for ``run_s`` seconds if nothing changes."""
        left_s = run_s - self.ran_s
        return self.now_s + self.restart_left_s + left_s if self.speed > 0 and left_s > 0 else math.inf
