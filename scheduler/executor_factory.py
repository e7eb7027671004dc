"""The driver that the settings name. The control loop itself knows only ``executors.base``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from core.settings import Settings
from executors.base import Executor
from scheduler.control.due import STEADY_LOOK


class UnknownExecutor(Exception):
    """The settings name a driver that this platform does not have."""


@dataclass(frozen=True, slots=True)
class ExecutorSetup:
    """A driver and how it wants to be watched.

    ``watch_every``: between looks at an attempt that runs; ``None`` where a look is too dear to be made in vain.
    ``steady_look``: between reconciles of one that runs well; longer where the driver tells of changes itself.
    """

    executor: Executor
    watch_every: timedelta | None
    steady_look: timedelta = STEADY_LOOK


def make_executor(settings: Settings) -> ExecutorSetup:
    """Build the driver.

    Raises:
        UnknownExecutor: there is none of this name; the sentence says what there is.
    """
    match settings.executor:
        case "process":
            from executors.process import ProcessExecutor

            driver = ProcessExecutor(
                settings.run_dir,
                port_range=settings.process_port_range,
                hidden=(settings.home,),
                api_url=settings.replica_api_url or settings.api_url,
            )
            # A look reads one small file per replica.
            return ExecutorSetup(driver, timedelta(milliseconds=150))
        case "fake":
            from executors.fake import FakeEngine, FakeExecutor

            return ExecutorSetup(FakeExecutor(FakeEngine()), timedelta(milliseconds=150))
        case "docker" | "kubernetes":
            raise UnknownExecutor(
                f"TRAINMASTER_EXECUTOR={settings.executor}: this version has no such driver yet; set it to process."
            )
