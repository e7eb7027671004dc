"""Horovod's environment variables that are supported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Mapping, Optional

_MIB = 1024 * 1024


@dataclass(frozen=True)
class HorovodSettings:
    """Durations in seconds.

    ``fusion_bytes``: size limit of the fusion buffer; 0 turns tensor fusion off. ``stall_warn_s``: after this time a
    tensor that some ranks have not requested is reported; after ``stall_end_s`` it fails. ``start_s``: how long the
    ranks wait for each other in ``init``.
    """

    fusion_bytes: int = 64 * _MIB
    stall_warn_s: float = 60.0
    # Horovod waits for ever. Here every wait ends; half an hour is torch's own time-out with gloo.
    stall_end_s: float = 1800.0
    start_s: float = 300.0


def read_settings(environ: Optional[Mapping[str, str]] = None) -> HorovodSettings:
    """Raises ``ValueError``, which names the variable, for a value that is not a number."""
    env = os.environ if environ is None else environ
    default = HorovodSettings()
    disabled = env.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0", "false", "False")
    warn_s = _number(env, "HOROVOD_STALL_CHECK_TIME_SECONDS", default.stall_warn_s)
    return HorovodSettings(
        fusion_bytes=int(_number(env, "HOROVOD_FUSION_THRESHOLD", default.fusion_bytes)),
        stall_warn_s=float("inf") if disabled else warn_s,
        # In Horovod 0 means "unset".
        stall_end_s=_number(env, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0) or max(default.stall_end_s, 2 * warn_s),
        start_s=_number(env, "HOROVOD_GLOO_TIMEOUT_SECONDS", default.start_s) or default.start_s,
    )


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(f"{name}: {text!r} is not a number") from error
    if not value >= 0:
        raise ValueError(f"{name}: {text!r} must not be negative")
    return value
