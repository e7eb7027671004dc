"""What goes wrong with checkpoints, each as one sentence."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read or written; the message says which and what to do."""


class CheckpointNotWrittenError(CheckpointError, OSError):
    """The volume does not take a checkpoint; the earlier ones are as they were."""


@contextmanager
def told_as_not_written(step: int, folder: Path) -> Iterator[None]:
    """What the file system refuses in the block becomes a :class:`CheckpointNotWrittenError` that says why."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        what = f"the checkpoint of step {step} was not written to {folder}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "the output volume is full: free space there, or keep fewer checkpoints"
        else:
            advice = f"{error.strerror or error}"
        raise CheckpointNotWrittenError(f"{what}: {advice}; earlier checkpoints are whole") from error
