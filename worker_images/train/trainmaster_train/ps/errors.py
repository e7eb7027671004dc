"""What can go wrong between workers and parameter servers. Every message is a sentence that a user can act on."""

from __future__ import annotations


class ParameterServerError(RuntimeError):
    """Training with parameter servers cannot go on; the message says why, who is concerned, and what to do."""


class RefusedError(ParameterServerError):
    """A ps understood the request and says no; the message is its sentence."""


class LostError(ParameterServerError):
    """The connection to a ps is over. Whether the last request was carried out is unknown."""


class DeadlineError(ParameterServerError):
    """Somebody did not come or answer in time; the message names who is missing."""


class NonFiniteGradientError(ParameterServerError):
    """A gradient holds NaN or infinity; the message names the worker, the step and the tensor. It was not applied."""
