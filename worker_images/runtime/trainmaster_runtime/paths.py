"""Where the kernel allows no mounts: the job's fixed paths mapped to the real ones in environment and arguments."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class PathMap:
    """Maps ``/data``, ``/data/output``, … and what lies below them. The longest target wins."""

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._targets = dict(targets)
        names = "|".join(re.escape(name) for name in sorted(targets, key=len, reverse=True))
        # A path begins at the start, after a blank, a quote, or one of = : , ( [ and is not the middle of another
        # path; file:///data stays, for its slash stands before.
        self._pattern = re.compile(r"(?<![^\s=:,;'\"(\[{<>|&])(" + names + r")(?=$|[/\s:,;'\")\]}<>|&])")

    def text(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._targets[match.group(1)], text)

    def env(self, env: Mapping[str, str]) -> dict[str, str]:
        return {name: self.text(value) if "/" in value else value for name, value in env.items()}
