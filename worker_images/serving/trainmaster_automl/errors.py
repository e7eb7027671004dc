"""What is wrong with the data, in words for who reads the log."""

from __future__ import annotations


class DataProblem(Exception):
    """Nothing can be learnt from the data as they are: what is wrong, and what to do."""
