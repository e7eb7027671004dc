"""Errors of workers and parameter servers. Every message tells a user what to do."""

from __future__ import annotations


class ParameterServerError(RuntimeError):
    """Training with parameter servers cannot continue; the message says why, names the replica, and says what to do."""


class RefusedError(ParameterServerError):
    """A ps refused a request; the message is its reason."""


class LostError(ParameterServerError):
    """The connection to a ps is lost. Whether the last request was executed is unknown."""


class DeadlineError(ParameterServerError):
    """A replica did not connect or answer in time; the message names it."""


class NonFiniteGradientError(ParameterServerError):
    """A gradient holds NaN or infinity; the message names the worker, the step and the tensor. It was not applied."""
