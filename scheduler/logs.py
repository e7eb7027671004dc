"""Logging of the scheduler processes: JSON lines on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog

# Libraries that tell much at INFO.
_QUIET: Final = ("celery", "kombu", "amqp", "sqlalchemy", "alembic")


def configure_logging(level: str) -> None:
    """One JSON object per line, with time and level, for our own events and for what libraries say."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    # It warns that memory:// has no host name.
    logging.getLogger("kombu.connection").setLevel(logging.ERROR)
