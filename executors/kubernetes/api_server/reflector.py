"""A local copy of one collection: a list once, then a watch; another list only when the version has expired (410
Gone).
"""

from __future__ import annotations

import random  # noqa: TID251 (jitter: equal clients must not come back at the same moment)
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import structlog

from core.domain.errors import ExecutorError, ExecutorTryAgain
from executors.kubernetes.api_server.client import ClientClosed, Gone, Json, KubernetesClient

log = structlog.get_logger(__name__)

# How long a copy is good without a connection: what it shows may be old, but nothing is concluded from absence.
_GOOD_FOR_S: Final = 30.0
_FIRST_LIST_S: Final = 10.0
_FIRST_WAIT_S: Final = 0.3
_LONGEST_WAIT_S: Final = 15.0
# The server ends a watch after so long, so that connections spread over its replicas again.
_WATCH_S: Final = 240.0


class Store(Protocol):
    """Holds the copy. Called by one thread, in the order of the collection's history."""

    def replace(self, items: Iterable[Json], resource_version: str) -> None:
        """A fresh list, whole. ``items`` come page by page and may raise: then nothing is changed."""
        ...

    def apply(self, kind: str, item: Json) -> None:
        """One event: ADDED, MODIFIED or DELETED."""
        ...


class Reflector:
    """Keeps ``store`` equal to the collection at ``url``, in a thread of its own that :meth:`start` begins.

    Survives an API server that is away, slow or busy: it waits longer with every failure, up to 15 seconds, and goes on
    from the last version that it saw. ``lists`` and ``failures`` count, for tests and people.
    """

    def __init__(
        self,
        cluster: KubernetesClient,
        url: str,
        store: Store,
        *,
        params: Mapping[str, Any] | None = None,
        page: int = 500,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._url = url
        self._store = store
        self._params = dict(params or {})
        self._page = page
        self._clock = clock
        self._is_synced = threading.Event()
        self._is_stopping = threading.Event()
        self._version = ""  # where to go on from; empty: list first
        self._away_since: float | None = clock()
        self._first_list_deadline: float | None = None
        self._why_away = ""
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._jitter = random.Random()  # noqa: S311 (no secret)
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        """Begin; again is harmless."""
        with self._start_lock:
            if self._thread is None and not self._is_stopping.is_set():
                self._first_list_deadline = time.monotonic() + _FIRST_LIST_S
                self._thread = threading.Thread(
                    target=self._run, name=f"reflect {self._url.rpartition('/')[2]}", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """End at once where the cluster is closed, else with the next event."""
        self._is_stopping.set()

    def require(self) -> None:
        """Return when the copy is there and not older than half a minute.

        Waits for the first list until ten seconds after the start or its failure, however often it is called.

        Raises:
            ExecutorTryAgain: it is not; the sentence says why.
        """
        self.start()
        while not (is_there := self._is_synced.is_set()) and not self._why_away:
            left_s = (self._first_list_deadline or 0.0) - time.monotonic()
            if left_s <= 0:
                break
            self._is_synced.wait(min(left_s, 0.2))
        away_since = self._away_since
        if is_there and (away_since is None or self._clock() - away_since <= _GOOD_FOR_S):
            return
        raise ExecutorTryAgain(
            self._why_away or f"The Kubernetes API server has not yet listed its {self._url.rpartition('/')[2]}."
        )

    def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._is_stopping.is_set():
            try:
                if not self._version:
                    self._list()
                begin_s = self._clock()
                self._watch()
                if self._clock() - begin_s >= 1.0:
                    wait_s = _FIRST_WAIT_S
                    continue
            except Gone as gone:
                # The server no longer knows what came after our version: list once, then watch again.
                log.info("kubernetes.resync", url=self._url, why=str(gone))
                self._version = ""
                self.counts["gone"] += 1
            except ClientClosed:
                return
            except ExecutorError as away:  # rights may be missing, too: an administrator can give them
                self._note_away(away.sentence)
            except Exception as error:
                log.exception("kubernetes.reflect_failed", url=self._url)
                self._note_away(str(error))
                self._version = ""
            self._is_stopping.wait(wait_s * self._jitter.uniform(0.5, 1.0))
            wait_s = min(_LONGEST_WAIT_S, 2 * wait_s)

    def _list(self) -> None:
        self.counts["lists"] += 1
        pages = self._cluster.list_pages(self._url, self._params, limit=self._page)
        first = next(pages)
        version = first["metadata"]["resourceVersion"]

        def items() -> Iterable[Json]:
            yield from first["items"]
            for page in pages:
                yield from page["items"]

        self._store.replace(items(), version)
        self._version = version
        self._is_synced.set()

    def _watch(self) -> None:
        self.counts["watches"] += 1
        watching = self._cluster.watch(
            self._url,
            resource_version=self._version,
            params=self._params,
            timeout_s=_WATCH_S * self._jitter.uniform(0.8, 1.2),
        )
        if self._away_since is not None and self._why_away:
            log.info("kubernetes.back", url=self._url)
        self._away_since, self._why_away = None, ""
        try:
            for event in watching:
                item = event["object"]
                if event["type"] != "BOOKMARK":
                    self._store.apply(event["type"], item)
                self._version = item["metadata"]["resourceVersion"]
                if self._is_stopping.is_set():
                    return
        finally:
            watching.close()
            if self._away_since is None:
                self._away_since = self._clock()

    def _note_away(self, why: str) -> None:
        if self._away_since is None:
            self._away_since = self._clock()
        if not self._why_away:
            log.warning("kubernetes.away", url=self._url, why=why)
        self._why_away = why
        # Last: a reader that sees the count also finds the reason.
        self.counts["failures"] += 1
