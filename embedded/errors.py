"""Errors of starting or stopping the platform: one sentence for the user."""

from __future__ import annotations

from typing import ClassVar


class CannotStart(Exception):
    """The text is shown as it is. ``exit_code``: of the process; `trainmaster up` reads it."""

    exit_code: ClassVar[int] = 1


class NothingRuns(CannotStart):
    """No process serves the data folder."""

    exit_code = 3


class AlreadyRuns(CannotStart):
    """Another process serves the data folder."""

    exit_code = 6
