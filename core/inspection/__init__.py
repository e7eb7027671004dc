"""Looking into checkpoints of any format without running anything of them.

Files are a user's, and may be hostile. Nothing here unpickles, imports or calls what a file names: pickles are read as a
tree of symbols, and every length that a file states is compared with what the file has. What remains (a parser that
takes long, or much memory) is bounded from outside: :mod:`core.inspection.pool` runs all this in a process of its own.
"""

from __future__ import annotations
