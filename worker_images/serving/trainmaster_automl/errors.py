"""Errors in the data, with messages for users."""

from __future__ import annotations


class DataProblem(Exception):
    """The data cannot be used for training; the message says what is wrong, and what to do."""
