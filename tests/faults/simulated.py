"""Several control planes in virtual time, one step at a time.

Every task of a control plane runs in a thread of its own, but only one thread runs at any moment: at each *step*
(before and after every transaction and every call of the executor) the world decides by its seed whether the task goes
on, another one has its turn, it sleeps past its lease, or its whole process dies.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from types import TracebackType
from typing import Any, Self

from sqlalchemy.orm import Session

from core.domain.errors import ExecutorTryAgain, StaleWrite, Unavailable
from core.domain.ids import AttemptId
from core.domain.sharing.resources import Amounts
from core.wakeups import TOPIC_RECONCILE, TOPIC_TICK
from executors.base import Executor, Gpu, NodeInfo, Observation
from executors.fake import FakeEngine, FakeExecutor, ProcessKilled, SeededFaults
from scheduler.control.attempts.reconcile_result import ReconcileOutcome, ReconcileResult
from scheduler.control.attempts.reconciler import Reconciler
from scheduler.control.context import ControlContext
from scheduler.control.maintenance.gc import gc_executor
from scheduler.control.maintenance.nodes import sync_nodes
from scheduler.control.maintenance.resync import due_attempts
from scheduler.control.planning.tick import Ticker
from scheduler.control.studies.study_loop import StudyLoop
from scheduler.control.transitions import expire_waiting

TOPIC_DUE, TOPIC_NODES, TOPIC_SWEEP = "due", "nodes", "sweep"
TOPIC_STUDIES, TOPIC_ASK = "studies", "ask"
# Seconds between the clock's rings; longer than in production, so that more depends on the bells.
BEATS = {TOPIC_TICK: 2.0, TOPIC_DUE: 2.0, TOPIC_NODES: 7.0, TOPIC_SWEEP: 13.0}
# Where there are studies: the clock's ring for all of them, and a program that asks for a point.
STUDY_BEATS = {TOPIC_STUDIES: 2.0, TOPIC_ASK: 1.3}


GPUS = tuple(Gpu(str(number), "a100", 2**30) for number in range(3))
NODES = (
    NodeInfo("node-0", {}, Amounts(6_000, 64 * 2**30)),
    NodeInfo("node-1", {}, Amounts(4_000, 64 * 2**30, {"a100": 3}), GPUS),
    NodeInfo("node-2", {}, Amounts(4_000, 64 * 2**30, {"a100": 3}), GPUS),
)
NODE_GPUS = tuple(len(node.gpus) for node in NODES)


@dataclass(frozen=True)
class Chances:
    """Of each step, ring or transaction."""

    kill: float = 0.004
    sleep: float = 0.02
    switch: float = 0.15
    database_away: float = 0.01
    commit_unheard: float = 0.005
    ring_lost: float = 0.25
    ring_doubled: float = 0.1
    ring_late: float = 0.2


CALM = Chances(0, 0, 0, 0, 0, 0, 0, 0)


class Task:
    """A piece of work of one process, in a thread that moves only when the world says so."""

    def __init__(self, process: Process, name: str, work: Callable[[], None]) -> None:
        self.process = process
        self.name = name
        self.wakes_at: datetime | None = None
        self.is_done = False
        self._work = work
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_started = False

    def resume(self) -> None:
        """Run it up to its next pause, or to its end."""
        if self._is_started:
            self._go.release()
        else:
            self._is_started = True
            self._thread.start()
        self._back.acquire()
        if self.is_done:
            self._thread.join()

    def pause(self) -> None:
        """Called inside: give the turn back to the world."""
        self._back.release()
        self._go.acquire()

    def _run(self) -> None:
        try:
            if not self.process.is_dead:
                self._work()
        except ProcessKilled:
            self.process.is_dead = True
        except (Unavailable, StaleWrite, ExecutorTryAgain):
            pass  # what the edge of a task logs and forgets
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.process.world.violations.append(f"{self.name} raised {error!r}")
        finally:
            self.is_done = True
            self._back.release()


class SteppedSession(Session):
    """A session whose transactions are steps."""

    world: World

    def __enter__(self) -> Self:
        self.world.step("begin")
        if self.world.chance(self.world.chances.database_away):
            raise Unavailable("The database is away.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, value, trace)
        if kind is None:
            self.world.step("committed")
            if self.world.chance(self.world.chances.commit_unheard):
                raise Unavailable("The database went away after the commit.")


class SteppedExecutor:
    """The fake driver, with a step before and after each call."""

    name = "fake"
    shares_hosts = True

    def __init__(self, world: World, inner: FakeExecutor) -> None:
        self._world = world
        self._inner = inner

    def observe(self, attempt_id: AttemptId, *, fresh: bool = False) -> Sequence[Observation]:
        return self._stepped(lambda: self._inner.observe(attempt_id, fresh=fresh))

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        return lambda *args, **kwargs: self._stepped(lambda: call(*args, **kwargs))

    def _stepped(self, call: Callable[[], Any]) -> Any:
        self._world.step("call")
        answer = call()
        self._world.step("called")
        self._world.check_engine()
        return answer


class TurnByTurn(futures.Executor):
    """A pool of threads that works in the one that asks, so that only one thread moves at a time here, too: passes and
    creations side by side, and yet the same in every run of a seed.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        future.set_result(work(*args, **options))
        return future


class Process:
    """One control plane. Killed, it is replaced by another with a new name and an empty memory."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.is_dead = False
        self.dues = 0
        fake = FakeExecutor(world.engine, world.executor_faults)
        executor: Executor = SteppedExecutor(world, fake)  # type: ignore[assignment]
        self.control = ControlContext(
            sessions=world.sessions,
            executor=executor,
            wakeup=world,
            clock=lambda: world.engine.now,
            holder=f"process-{number}",
            secret_key=b"k" * 32,
            # Side by side in every other seed; see TurnByTurn.
            create_at_once=1 if world.seed % 2 else 4,
            make_id=world.make_id,
            make_pool=TurnByTurn,
        )
        self.reconciler = Reconciler(self.control)
        self.ticker = Ticker(self.control)
        self.study_loop = StudyLoop(self.control)

    def work_on(self, topic: str, key: str) -> Callable[[], None]:
        match topic:
            case "tick":
                return self._tick
            case "reconcile":
                return lambda: self._reconcile(AttemptId(key))
            case "due":
                return self._due
            case "nodes":
                return self._nodes
            case "study":
                return lambda: self.study_loop.reconcile(key)
            case "studies":
                return self.study_loop.notify_due
            case "ask":
                return lambda: self.world.ask(self)
            case _:
                return lambda: [gc_executor(self.control), None][1]

    def _tick(self) -> None:
        report = self.ticker.tick()
        if report.recheck_at is not None:
            self.world.post(report.recheck_at, TOPIC_TICK)

    def _reconcile(self, attempt_id: AttemptId) -> None:
        self._report(attempt_id, self.reconciler.reconcile(attempt_id))

    def _report(self, attempt_id: AttemptId, look: ReconcileResult) -> None:
        if look.recheck_at is not None and look.outcome in (ReconcileOutcome.REQUEUE, ReconcileOutcome.IN_SYNC):
            self.world.post(look.recheck_at, TOPIC_RECONCILE, attempt_id)

    def _due(self) -> None:
        with self.control.sessions() as session:
            due = due_attempts(session, self.control.clock())
        # By number and not by chance, so that what is drawn elsewhere stays as it was: every other time side by side.
        self.dues += 1
        if self.dues % 2:
            for attempt_id in due:
                self.world.notify(TOPIC_RECONCILE, attempt_id)
            return
        for attempt_id, outcome in self.reconciler.reconcile_all(due).items():
            if isinstance(outcome, ReconcileResult):
                self._report(attempt_id, outcome)
            elif not isinstance(outcome, (Unavailable, StaleWrite, ExecutorTryAgain)):
                raise outcome

    def _nodes(self) -> None:
        sync_nodes(self.control)
        expire_waiting(self.control)


@dataclass
class World:
    """Everything that the processes share, and the order in which they move."""

    seed: int
    engine: FakeEngine
    sessions: Any
    chances: Chances = field(default_factory=Chances)
    process_count: int = 2
    has_studies: bool = False
    executor_faults: SeededFaults = field(init=False)
    violations: list[str] = field(default_factory=list)
    check_engine: Callable[[], None] = lambda: None
    check_truth: Callable[[], None] = lambda: None
    ask: Callable[[Process], None] = lambda _process: None

    def __post_init__(self) -> None:
        from executors.fake import InjectedFault

        self.random = Random(self.seed)
        weights = {fate: 0.03 for fate in InjectedFault if fate is not InjectedFault.NONE}
        weights[InjectedFault.LATE] = 0.1
        weights[InjectedFault.KILLED_BEFORE] = weights[InjectedFault.KILLED_AFTER] = 0.004
        self.executor_faults = SeededFaults(self.random, weights)
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.messages: list[tuple[datetime, str, str]] = []
        self.plans: list[tuple[datetime, Callable[[], None]]] = []
        self.periods = {**BEATS, **STUDY_BEATS} if self.has_studies else BEATS
        self.beats = dict.fromkeys(self.periods, self.engine.now)
        self.beat_scale = 1.0
        self.made = 0
        self.numbers = itertools.count(1)
        self.processes = [self._new_process() for _ in range(self.process_count)]

    # What the processes call

    def make_id(self, prefix: str) -> str:
        """Ids in the order of their making, and the same in every run of a seed."""
        return f"{prefix}-{next(self.numbers):06}"

    def notify(self, topic: str, key: str = "") -> None:
        """A bell that loses, doubles and delays."""
        roll = self.random.random
        if roll() < self.chances.ring_lost:
            return
        late = timedelta(seconds=self.random.uniform(0.5, 5)) if roll() < self.chances.ring_late else timedelta()
        for _ in range(2 if roll() < self.chances.ring_doubled else 1):
            self.post(self.engine.now + late, topic, key)

    def post(self, at: datetime, topic: str, key: str = "") -> None:
        message = (max(at, self.engine.now), topic, key)
        if message not in self.messages:
            self.messages.append(message)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.current is not None and self.random.random() < probability

    def step(self, _where: str) -> None:
        """A place where anything may happen to the task that runs."""
        task = self.current
        if task is None:
            return
        if task.process.is_dead:
            raise ProcessKilled
        if self.chance(self.chances.kill):
            task.process.is_dead = True
            raise ProcessKilled
        if self.chance(self.chances.sleep):
            task.wakes_at = self.engine.now + timedelta(seconds=self.random.uniform(1, 40))
        elif not self.chance(self.chances.switch):
            return
        task.pause()
        if task.process.is_dead:
            raise ProcessKilled

    # What the test calls

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something at this many seconds from now."""
        self.plans.append((self.engine.now + timedelta(seconds=seconds), action))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let virtual time pass, or stop as soon as ``until`` holds between two beats."""
        end = self.engine.now + timedelta(seconds=seconds)
        while True:
            self._work_off()
            next_at = self._next_at()
            if next_at > end:
                self.engine.advance(end - self.engine.now)
                return
            if next_at > self.engine.now:
                self.engine.advance(next_at - self.engine.now)
                self.check_engine()
                self.check_truth()
                if until():
                    return
            self._dispatch()

    def calm_down(self) -> None:
        """No faults from here on; who sleeps goes on as if it had been swapped out."""
        self.chances = CALM
        self.executor_faults.is_on = False

    def _work_off(self) -> None:
        while True:
            ready = [task for task in self.tasks if task.wakes_at is None]
            if not ready:
                return
            task = self.random.choice(ready)
            self.current = task
            task.resume()
            self.current = None
            if task.is_done:
                self.tasks.remove(task)
            if task.process.is_dead and task.process in self.processes:
                self.processes.remove(task.process)
                for other in self.tasks:
                    if other.process is task.process:
                        other.wakes_at = None  # it dies at once, too
                self.at(self.random.uniform(0, 5), self._replace)

    def _replace(self) -> None:
        self.processes.append(self._new_process())

    def _new_process(self) -> Process:
        self.made += 1
        return Process(self, self.made)

    def _next_at(self) -> datetime:
        times = [at for at, *_ in self.messages] + [at for at, _ in self.plans] + list(self.beats.values())
        times += [task.wakes_at for task in self.tasks if task.wakes_at is not None]
        return min(times)

    def _dispatch(self) -> None:
        now = self.engine.now
        for task in self.tasks:
            if task.wakes_at is not None and task.wakes_at <= now:
                task.wakes_at = None
        for planned in [plan for plan in self.plans if plan[0] <= now]:
            self.plans.remove(planned)
            planned[1]()
        for topic, at in self.beats.items():
            if at <= now:
                self.beats[topic] = now + timedelta(seconds=self.periods[topic] * self.beat_scale)
                self.messages.append((now, topic, ""))
        due = [message for message in self.messages if message[0] <= now]
        self.messages = [message for message in self.messages if message[0] > now]
        for _, topic, key in due:
            if self.processes:
                process = self.random.choice(self.processes)
                self.tasks.append(Task(process, f"{process.control.holder} {topic} {key}", process.work_on(topic, key)))
