"""Human-readable sizes."""

from __future__ import annotations


def format_size(count: float) -> str:
    """``312 B``, ``1.5 MiB``."""
    if count < 1024:
        return f"{int(count)} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        count /= 1024
        if count < 1024 or unit == "PiB":
            break
    return f"{count:.1f} {unit}" if count < 100 else f"{count:.0f} {unit}"
