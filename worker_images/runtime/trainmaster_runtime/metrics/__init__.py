"""Metrics without a line of code in the script: what the machine does, TensorBoard's files, hypertune's, and log
lines.
"""

from __future__ import annotations
