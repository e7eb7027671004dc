"""What goes wrong, in words for who reads the answer or the log."""

from __future__ import annotations


class ModelProblem(Exception):
    """The model cannot be served: what is wrong with its files, and what would be right."""


class BadInstances(Exception):
    """The request's instances are none that the model takes."""


class InputProblem(ModelProblem):
    """A file to be read is not there, not whole, or not what its name says: the file, and what to do."""
