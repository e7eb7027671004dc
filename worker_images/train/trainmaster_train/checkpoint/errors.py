"""Errors of checkpoints, each with one sentence."""

from __future__ import annotations

import errno
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read or written; the message says which and what to do."""


class DamagedError(CheckpointError):
    """This checkpoint is damaged; an older one may be intact."""


class CheckpointNotWrittenError(CheckpointError, OSError):
    """A checkpoint could not be written to the volume; earlier ones are unchanged."""


FULL = "the output volume is full: free space there, or keep fewer checkpoints"
# After a partial write torch reports only these messages, without the reason.
_NO_ROOM = re.compile(
    r"inline_container.*unexpected pos \d+ vs \d+|PytorchStreamWriter failed writing|No space left|quota exceeded"
)


def explain_torch_error(sentence: str) -> str:
    """Message of torch about a failed write, with advice if the volume is full."""
    return f"{FULL} (torch: {sentence})" if _NO_ROOM.search(sentence) else sentence


@contextmanager
def raising_not_written(step: int, folder: Path) -> Iterator[None]:
    """Convert errors of the file system into a :class:`CheckpointNotWrittenError` with the reason."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        subject = f"the checkpoint of step {step} was not written to {folder}"
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = FULL if is_full else f"{error.strerror or error}"
        raise CheckpointNotWrittenError(f"{subject}: {advice}; earlier checkpoints are intact") from error
