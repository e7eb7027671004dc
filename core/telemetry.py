"""Traces for OpenTelemetry: one for each job, from its submission to its end, over all processes of the platform.

The ids of a job's trace, and of the spans that others belong to, follow from the ids of the job, its attempts and its
replicas. So no process needs to store or pass on a context, all decide alike whether a trace is sampled, and a span
that is exported twice is the same one.

Without ``OTEL_EXPORTER_OTLP_ENDPOINT`` nothing of OpenTelemetry is imported, and nothing recorded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from core.settings import BadSettings

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Tracer, TracerProvider
    from opentelemetry.trace import SpanContext

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NANOSECONDS: Final = 10**9
_next_ids: ContextVar[tuple[int, int] | None] = ContextVar("next_ids", default=None)
# The one of this process, once it is configured.
_tracing: list[_Tracing] = []


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """A span of a job's trace to which others belong: the job's own, one of an attempt, or one of a replica of it
    (``worker-0``).
    """

    job_id: str
    attempt_id: str = ""
    replica: str = ""

    @property
    def trace_id(self) -> int:
        return int.from_bytes(blake2b(self.job_id.encode(), digest_size=16).digest())

    @property
    def span_id(self) -> int:
        name = f"{self.job_id}/{self.attempt_id}/{self.replica}"
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())


def is_requested() -> bool:
    """Whether the environment names a collector."""
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not is_off and any(os.environ.get(name) for name in _ENDPOINTS)


def configure(part: str) -> None:
    """Export the traces of this process, a part of the platform such as ``api``, if the environment says where to.

    Raises:
        BadSettings: OpenTelemetry's packages are not installed.
    """
    _tracing.clear()
    if not is_requested():
        return
    try:
        _tracing.append(_Tracing(part))
    except ImportError as error:
        raise BadSettings(
            f"{_ENDPOINTS[0]} is set, but {error.name} is not installed: pip install trainmaster-server[telemetry]."
        ) from None


def flush() -> None:
    """Export what is recorded. Blocks."""
    for tracing in _tracing:
        tracing.provider.force_flush()


def is_sampled(job_id: str) -> bool:
    """Whether the job's trace is recorded; false without a collector."""
    return bool(_tracing) and _tracing[0].is_sampled(SpanPlace(job_id).trace_id)


def traceparent(place: SpanPlace) -> str | None:
    """The W3C trace context of what belongs to ``place``, for the environment of a program; ``None``: no collector."""
    if not _tracing:
        return None
    return f"00-{place.trace_id:032x}-{place.span_id:016x}-{int(is_sampled(place.job_id)):02x}"


def record(
    name: str,
    began_at: datetime,
    ended_at: datetime,
    *,
    place: SpanPlace,
    parent: SpanPlace | None,
    error: str = "",
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Record a span of the past whose id follows from ``place``; ``parent`` ``None``: the trace's first one."""
    if is_sampled(place.job_id):
        token = _next_ids.set((place.trace_id, place.span_id))
        try:
            _tracing[0].record(name, began_at, ended_at, parent, error, attributes)
        finally:
            _next_ids.reset(token)


@contextmanager
def span(name: str, parent: SpanPlace, **attributes: Any) -> Iterator[None]:
    """A span of the block below ``parent``."""
    if not is_sampled(parent.job_id):
        yield
        return
    with _tracing[0].tracer.start_as_current_span(name, _tracing[0].context_of(parent), attributes=attributes):
        yield


@contextmanager
def task_span(task: str, key: str) -> Iterator[None]:
    """A trace of its own for the block, the run of a Celery task."""
    if not _tracing:
        yield
        return
    from opentelemetry.trace import SpanKind

    attributes = {"messaging.system": "celery", "messaging.destination.name": task, "trainmaster.key": key}
    with _tracing[0].tracer.start_as_current_span(task, kind=SpanKind.CONSUMER, attributes=attributes):
        yield


def record_request(
    operation: str, method: str, status: int, began_ns: int, ended_ns: int, *, job_id: str, sent_traceparent: str
) -> None:
    """Record a request that was answered. ``job_id``: of the job that it submitted, whose trace it then belongs to;
    else it belongs to the trace that the client sent.
    """
    if _tracing and not (job_id and not is_sampled(job_id)):
        attributes = {"http.request.method": method, "http.response.status_code": status, "http.route": operation}
        _tracing[0].record_request(operation, began_ns, ended_ns, attributes, job_id, sent_traceparent)


class _Tracing:
    """OpenTelemetry's SDK, imported here alone. Its own variables (``OTEL_…``) set endpoint, sampler and batches."""

    def __init__(self, part: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        class Ids(RandomIdGenerator):
            def generate_trace_id(self) -> int:
                ids = _next_ids.get()
                return super().generate_trace_id() if ids is None else ids[0]

            def generate_span_id(self) -> int:
                ids = _next_ids.get()
                return super().generate_span_id() if ids is None else ids[1]

        name = os.environ.get("OTEL_SERVICE_NAME") or f"trainmaster-{part}"
        self.provider: TracerProvider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: name}), id_generator=Ids()
        )
        self._tracer: Tracer = self.provider.get_tracer("trainmaster")  # type: ignore[assignment]
        self._make_processor: Callable[[], Any] = lambda: BatchSpanProcessor(OTLPSpanExporter())
        self._is_exporting = False
        self._lock = threading.Lock()

    @property
    def tracer(self) -> Tracer:
        """From its first use on there is a thread that exports; until then the process may fork."""
        with self._lock:
            if not self._is_exporting:
                self._is_exporting = True
                self.provider.add_span_processor(self._make_processor())
        return self._tracer

    def is_sampled(self, trace_id: int) -> bool:
        decision: Any = self.provider.sampler.should_sample(None, trace_id, "job").decision
        return bool(decision.is_sampled())

    def context_of(self, place: SpanPlace) -> Context:
        """The context of spans below ``place``."""
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        flags = TraceFlags(TraceFlags.SAMPLED if self.is_sampled(place.trace_id) else TraceFlags.DEFAULT)
        found = SpanContext(place.trace_id, place.span_id, is_remote=True, trace_flags=flags)
        return set_span_in_context(NonRecordingSpan(found))

    def record(
        self,
        name: str,
        began_at: datetime,
        ended_at: datetime,
        parent: SpanPlace | None,
        error: str,
        attributes: Mapping[str, Any] | None,
    ) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import StatusCode

        context = Context() if parent is None else self.context_of(parent)
        found = self.tracer.start_span(name, context, attributes=attributes, start_time=_ns(began_at))
        if error:
            found.set_status(StatusCode.ERROR, error)
        found.end(max(_ns(began_at), _ns(ended_at)))

    def record_request(
        self,
        operation: str,
        began_ns: int,
        ended_ns: int,
        attributes: Mapping[str, Any],
        job_id: str,
        sent_traceparent: str,
    ) -> None:
        from opentelemetry.trace import Link, SpanKind, StatusCode, get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract({"traceparent": sent_traceparent} if sent_traceparent else {})
        links = []
        if job_id:
            sent: SpanContext = get_current_span(context).get_span_context()
            links = [Link(sent)] if sent.is_valid else []
            context = self.context_of(SpanPlace(job_id))
        found = self.tracer.start_span(
            operation, context, SpanKind.SERVER, attributes=attributes, links=links, start_time=began_ns
        )
        if attributes["http.response.status_code"] >= 500:
            found.set_status(StatusCode.ERROR)
        found.end(ended_ns)


def _ns(at: datetime) -> int:
    """Nanoseconds since 1970; a time without a zone is in UTC."""
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return int(aware.timestamp() * _NANOSECONDS)
