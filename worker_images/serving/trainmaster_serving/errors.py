"""What goes wrong, in words for who reads the answer or the log."""

from __future__ import annotations


class ModelProblem(Exception):
    """The model cannot be served: what is wrong with its files, and what would be right."""


class BadInstances(Exception):
    """The request's instances are none that the model takes."""
