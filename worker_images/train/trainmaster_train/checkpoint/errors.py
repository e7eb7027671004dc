"""What goes wrong with checkpoints, each as one sentence."""

from __future__ import annotations

import errno
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read or written; the message says which and what to do."""


class CheckpointNotWrittenError(CheckpointError, OSError):
    """The volume does not take a checkpoint; the earlier ones are as they were."""


FULL = "the output volume is full: free space there, or keep fewer checkpoints"
# Where the file system took only a part, torch says that alone: the reason is lost in it.
_NO_ROOM = re.compile(
    r"inline_container.*unexpected pos \d+ vs \d+|PytorchStreamWriter failed writing|No space left|quota exceeded"
)


def explain_torch_error(sentence: str) -> str:
    """What torch says of a file that it could not write, with what to do where the volume is full."""
    return f"{FULL} (torch: {sentence})" if _NO_ROOM.search(sentence) else sentence


@contextmanager
def raising_not_written(step: int, folder: Path) -> Iterator[None]:
    """What the file system refuses in the block becomes a :class:`CheckpointNotWrittenError` that says why."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        what = f"the checkpoint of step {step} was not written to {folder}"
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = FULL if is_full else f"{error.strerror or error}"
        raise CheckpointNotWrittenError(f"{what}: {advice}; earlier checkpoints are whole") from error
