"""Trainmaster's training library, for training scripts inside and outside of jobs.

Needs nothing but the standard library, and pyzmq for `ps`; torch is imported only where a torch state is written or
read.
"""

from __future__ import annotations

from trainmaster_train.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointNotWrittenError,
    Keep,
    Saver,
    best_checkpoint,
    find_checkpoint,
    latest,
    load_checkpoint,
    load_sharded,
    load_state,
    resume,
    save_checkpoint,
    save_sharded,
    seal_checkpoint,
    stage_checkpoint,
    staged_path,
)
from trainmaster_train.context import Context, ContextError, current
from trainmaster_train.report import log, log_histogram, log_image, log_text, progress

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointNotWrittenError",
    "Context",
    "ContextError",
    "Keep",
    "Saver",
    "best_checkpoint",
    "current",
    "find_checkpoint",
    "latest",
    "load_checkpoint",
    "load_sharded",
    "load_state",
    "log",
    "log_histogram",
    "log_image",
    "log_text",
    "progress",
    "resume",
    "save_checkpoint",
    "save_sharded",
    "seal_checkpoint",
    "stage_checkpoint",
    "staged_path",
]
