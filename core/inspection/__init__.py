"""Inspection of checkpoints of any format without executing anything in them.

Files are a user's, and may be hostile. Nothing here unpickles, imports or calls what a file names: pickles are parsed
into a tree of symbols, and every length stated in a file is compared with the file's size. The remaining risk (slow or
memory-hungry parsing) is bounded from outside: :mod:`core.inspection.pool` runs all this in a process of its own.
"""

from __future__ import annotations
