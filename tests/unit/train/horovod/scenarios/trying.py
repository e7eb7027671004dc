"""What a call says when it refuses."""

from __future__ import annotations


def refused(call, *arguments, **named):
    """The exception's name and text."""
    try:
        call(*arguments, **named)
    except Exception as error:  # noqa: BLE001
        return [type(error).__name__, str(error)]
    return None
