"""Filters escape sequences of untrusted text: a log line must not move the terminal's cursor, rename its window or fill
the clipboard.
"""

from __future__ import annotations

import re
from typing import Final

# ECMA-48: a colour (SGR) is a control sequence with digits and separators that ends in `m`. All others are removed:
# strings (OSC, DCS, PM, APC, SOS) up to their end or that of the text, control sequences, other escapes, and the
# control characters of 7 and 8 bits except the tab.
_COLOUR: Final = r"\x1b\[[0-9;:]*m"
_OTHER: Final = (
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f]).*?(?:\x07|\x1b\\|\x9c|$)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)
_WITH_COLOUR: Final = re.compile(f"({_COLOUR})|{_OTHER}", re.DOTALL)
_ANY: Final = re.compile(f"{_COLOUR}|{_OTHER}", re.DOTALL)


def without_escapes(text: str) -> str:
    """``text`` without control characters and terminal sequences; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "\n".join(_ANY.sub("", line) for line in text.split("\n"))


def only_colours(line: str) -> str:
    """A line with no escape sequences except colours.

    Of a progress bar that overwrites itself, only the last state remains, as on a terminal.
    """
    if line.isprintable():
        return line
    overwritten = [part for part in line.split("\r") if part]
    return _WITH_COLOUR.sub(lambda found: found[1] or "", overwritten[-1] if overwritten else "")
