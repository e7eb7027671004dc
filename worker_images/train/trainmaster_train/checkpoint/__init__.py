"""Checkpoints: written atomically, also in the background, and detected in any format."""

from __future__ import annotations

from trainmaster_train.checkpoint.errors import CheckpointError, CheckpointNotWrittenError
from trainmaster_train.checkpoint.finding import find_checkpoint, resume
from trainmaster_train.checkpoint.folder import (
    COMPLETE,
    META_FILE,
    STATE_FILE,
    Keep,
    best_checkpoint,
    complete_checkpoints,
    latest,
    read_meta,
    seal_checkpoint,
    stage_checkpoint,
    staged_path,
)
from trainmaster_train.checkpoint.formats import FoundCheckpoint
from trainmaster_train.checkpoint.saver import Saver
from trainmaster_train.checkpoint.sharded import load_sharded, save_sharded
from trainmaster_train.checkpoint.states import Checkpoint, load_checkpoint, load_state, save_checkpoint

__all__ = [
    "COMPLETE",
    "META_FILE",
    "STATE_FILE",
    "Checkpoint",
    "CheckpointError",
    "CheckpointNotWrittenError",
    "FoundCheckpoint",
    "Keep",
    "Saver",
    "best_checkpoint",
    "complete_checkpoints",
    "find_checkpoint",
    "latest",
    "load_checkpoint",
    "load_sharded",
    "load_state",
    "read_meta",
    "resume",
    "save_checkpoint",
    "save_sharded",
    "seal_checkpoint",
    "stage_checkpoint",
    "staged_path",
]
