"""An API server that only says yes: enough for the platform to place gangs, at next to no cost of its own.

Objects are kept in memory. A pod is bound to its node a moment after it was posted, as kube-scheduler would do, and
nothing ever runs. Started as a program it prints its port.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import orjson

Json = dict[str, Any]

_URL: Final = re.compile(
    r"^/apis?/(?:v1|[^/]+/v1)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<kind>[a-z]+)(?:/(?P<name>.+))?$"
)
_TIME: Final = "2026-01-01T00:00:00Z"


class World:
    """All objects, by kind, namespace and name, and who watches them."""

    def __init__(self, nodes: int, gpus: int) -> None:
        self.things: dict[str, dict[tuple[str, str], Json]] = {}
        self.watchers: dict[str, list[asyncio.StreamWriter]] = {}
        self.version = 0
        for number in range(nodes):
            amounts = {"cpu": "64", "memory": "512Gi", "pods": "200", "nvidia.com/gpu": str(gpus)}
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": _TIME}
            status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
            self.put("nodes", "", {"metadata": {"name": f"node-{number:04}"}, "spec": {}, "status": status})

    def put(self, kind: str, namespace: str, thing: Json, event: str = "ADDED") -> Json:
        self.version += 1
        metadata = thing["metadata"]
        metadata.setdefault("uid", f"uid-{self.version}")
        metadata.setdefault("creationTimestamp", _TIME)
        metadata["resourceVersion"] = str(self.version)
        self.things.setdefault(kind, {})[namespace, metadata["name"]] = thing
        self.tell(kind, event, thing)
        return thing

    def tell(self, kind: str, event: str, thing: Json) -> None:
        line = orjson.dumps({"type": event, "object": thing}) + b"\n"
        for writer in self.watchers.get(kind, ()):
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))

    def post(self, kind: str, namespace: str, thing: Json) -> tuple[int, Json]:
        if (namespace, thing["metadata"]["name"]) in self.things.get(kind, {}):
            return 409, {"reason": "AlreadyExists", "message": "already exists"}
        if kind == "pods":
            thing["status"] = {"phase": "Pending"}
        made = self.put(kind, namespace, thing)
        if kind == "pods":
            asyncio.get_running_loop().call_later(0.01, self.bind, namespace, thing)
        return 201, made

    def bind(self, namespace: str, pod: Json) -> None:
        if (namespace, pod["metadata"]["name"]) not in self.things["pods"]:
            return
        wanted = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        node = wanted["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _TIME}
        status = {"phase": "Pending", "conditions": [scheduled]}
        bound = {**pod, "metadata": {**pod["metadata"]}, "spec": {**pod["spec"], "nodeName": node}, "status": status}
        self.put("pods", namespace, bound, "MODIFIED")

    def delete(self, kind: str, namespace: str, name: str) -> tuple[int, Json]:
        deleted = self.things.get(kind, {}).pop((namespace, name), None)
        if deleted is None:
            return 404, {"reason": "NotFound", "message": "not found"}
        self.version += 1
        deleted["metadata"]["resourceVersion"] = str(self.version)
        self.tell(kind, "DELETED", deleted)
        return 200, deleted

    def list(self, kind: str, namespace: str, selector: str) -> Json:
        terms = [part.partition("=") for part in selector.split(",") if part]

        def is_meant(where: str, thing: Json) -> bool:
            own = thing["metadata"].get("labels") or {}
            return namespace in ("", where) and all(
                own.get(key) == value if is_ else key in own for key, is_, value in terms
            )

        items = [thing for (where, _), thing in self.things.get(kind, {}).items() if is_meant(where, thing)]
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                parts = urlsplit(target)
                found = _URL.match(parts.path)
                query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
                if found is None:
                    status, answer = 404, {"message": parts.path}
                elif query.get("watch"):
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    self.watchers.setdefault(found["kind"], []).append(writer)
                    continue
                else:
                    status, answer = self.answer(method, found, query, orjson.loads(body) if body else {})
                text = orjson.dumps(answer)
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))
        except (asyncio.IncompleteReadError, ConnectionError):
            for watchers in self.watchers.values():
                if writer in watchers:
                    watchers.remove(writer)
            writer.close()

    def answer(self, method: str, found: re.Match[str], query: dict[str, str], body: Json) -> tuple[int, Json]:
        kind, namespace, name = found["kind"], found["namespace"] or "", found["name"] or ""
        if method == "POST":
            return self.post(kind, namespace, body)
        if method == "DELETE":
            return self.delete(kind, namespace, name)
        if not name:
            return 200, self.list(kind, namespace, query.get("labelSelector", ""))
        thing = self.things.get(kind, {}).get((namespace, name))
        if thing is None:
            return 404, {"reason": "NotFound", "message": "not found"}
        if method == "PATCH":
            for key, value in (body.get("metadata") or {}).items():
                thing["metadata"][key] = {**(thing["metadata"].get(key) or {}), **value}
            self.put(kind, namespace, thing, "MODIFIED")
        return 200, thing


async def _main(nodes: int, gpus: int) -> None:
    world = World(nodes, gpus)
    server = await asyncio.start_server(world.serve, "127.0.0.1", 0, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
