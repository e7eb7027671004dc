"""Errors, with messages for users."""

from __future__ import annotations


class ModelProblem(Exception):
    """The model cannot be served; the message says what is wrong with its files, and what to do."""


class BadInstances(Exception):
    """The request's instances are invalid for the model."""


class InputProblem(ModelProblem):
    """An input file is missing, incomplete, or not of its format; the message names it, and says what to do."""
