"""Limits of a job's metrics, and valid names of series."""

from __future__ import annotations

from typing import Final

NAME_LIMIT: Final = 250  # characters, as MLflow's: https://mlflow.org/docs/latest/rest-api.html
STEP_LIMIT: Final = 2**53  # every language's JSON keeps these exactly, and differences of two fit into 64 bits
TIME_LIMIT_MS: Final = 253_402_300_800_000  # the year 10000
SERIES_OF_REPLICA: Final = 5_000
SERIES_OF_JOB: Final = 50_000
POINTS_OF_JOB: Final = 200_000_000  # 1.5 GB or so
OBJECTS_OF_SERIES: Final = 100  # histograms, images, texts
OBJECT_BYTES: Final = 512 * 1024
OBJECT_BYTES_OF_JOB: Final = 256 * 2**20
BINS_LIMIT: Final = 1024
TEXT_LIMIT: Final = 64 * 1024  # bytes

# Prefix of the platform's own series, such as machine metrics.
SYSTEM: Final = "system/"


def name_fault(name: str) -> str | None:
    """Why ``name`` is no valid series name; ``None``: it is valid."""
    if not name or len(name) > NAME_LIMIT:
        return f"a metric's name has 1 to {NAME_LIMIT} characters, not {len(name):,}"
    if not name.isprintable():
        return (
            f"the metric's name {name[:60]!r} has characters that cannot be shown; use letters, digits, spaces "
            "and . _ / -"
        )
    return None
