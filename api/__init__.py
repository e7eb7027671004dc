"""The HTTP boundary: a module or a folder per noun, `http` and `app` below them, foreign dialects in `protocols`."""

from typing import Final

VERSION: Final = "0.1.0"
"""The server's version, as /health reports it."""
