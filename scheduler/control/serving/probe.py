"""Asking serving replicas whether they are ready."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

# Vertex AI gives a health check 10 s. Whoever takes longer than this is too busy to be given more.
TIMEOUT_S: Final = 2.0
_AT_ONCE: Final = 32
_SAID: Final = 200  # characters of a body


@dataclass(frozen=True, slots=True)
class Health:
    """``words``: a sentence on what was answered."""

    is_ready: bool
    words: str


Probe = Callable[[str, str], Health]  # address (host:port) and route


def ask(address: str, route: str) -> Health:
    """What the health route says. Blocks for ``TIMEOUT_S`` at most, a little more for a name that is looked up."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", route, headers={"User-Agent": "trainmaster-health"})
        answer = connection.getresponse()
        if answer.status == http.client.OK:
            return Health(True, "ready")
        said = answer.read(_SAID).decode("utf-8", "replace").strip()
        return Health(False, f"its health route {route} answers {answer.status}" + (f": {said}" if said else "."))
    except TimeoutError:
        return Health(False, f"its health route {route} did not answer within {TIMEOUT_S:g} s.")
    except ConnectionRefusedError:
        return Health(False, "nothing listens at its port yet.")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Health(False, f"its health route {route} cannot be asked: {str(error) or type(error).__name__}.")
    finally:
        connection.close()


def ask_all(probe: Probe, asked: Mapping[str, tuple[str, str]]) -> dict[str, Health]:
    """The same of each, by its key, many at once."""
    if not asked:
        return {}
    if len(asked) == 1:
        ((key, (address, route)),) = asked.items()
        return {key: probe(address, route)}
    with ThreadPoolExecutor(min(_AT_ONCE, len(asked)), thread_name_prefix="health") as pool:
        said = pool.map(lambda one: probe(*one), asked.values())
        return dict(zip(asked, said, strict=True))
