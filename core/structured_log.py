"""Logging of a server process: one JSON object per line on stderr, for our events and for libraries' messages."""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog

# Libraries that are verbose at INFO, and log statements with their values at DEBUG.
_QUIET: Final = ("sqlalchemy", "alembic", "multipart", "httpx", "httpcore", "asyncio", "celery", "kombu", "amqp")


def configure_logging(level: str) -> None:
    """Call once, at the start of the process.

    Without this structlog would render exceptions with the values of local variables, which may be secrets.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,  # the plain traceback: no values
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # tests and reloads configure again
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
