"""Errors that several protocols answer with a status of their own."""

from __future__ import annotations

from core.domain.errors import Conflict, InvalidRequest


class NotServed(InvalidRequest):
    """A part of the foreign API that this platform does not have; the message names it."""


class AlreadyExists(Conflict):
    """A name that is taken. Clients that get or create rely on this error."""
