"""What traces cost the API: processor time for a submission, with 1 % of the traces exported and without a collector.

Two platforms run at the same time; blocks of ``POST /jobs`` go to one and the other in turn. Of each pair of blocks the
quotient of the API's processor times is taken; quoted is the median. The jobs ask for more than there is and wait.

    python3 dev.py bench tracing_cost
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.control.api_load import request, request_bytes
from benchmarks.support.embedded import Embedded, cpu_s, embedded_platform, pids_of

SPEC = {"name": "waits", "command": "true", "cpu": "900"}


class Collector(BaseHTTPRequestHandler):
    """Takes traces and drops them."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's names
        """No line for each."""


async def block_s(platform: Embedded, count: int) -> float:
    """Processor seconds of the API for ``count`` submissions."""
    (api,) = pids_of(platform, "api")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(platform.url.rsplit(":", 1)[1]))
    payload = request_bytes("bench", platform.token, "POST", "/api/v1/jobs", {"spec": SPEC})
    before = cpu_s(api)
    for _ in range(count):
        status, _ = await request(reader, writer, payload)
        if status != 201:
            sys.exit(f"POST /jobs: {status}")
    writer.close()
    return cpu_s(api) - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--submissions", type=int, default=300, help="in a block")
    parser.add_argument("--ratio", default="0.01", help="of the traces")
    options = parser.parse_args()
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    traced_env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_address[1]}",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": options.ratio,
    }
    rate = {"TRAINMASTER_REQUESTS_PER_S": "100000"}
    quotients = []
    with embedded_platform(env=rate) as plain, embedded_platform(env={**rate, **traced_env}) as traced:
        for number in range(-1, options.rounds):
            pair = (plain, traced) if number % 2 else (traced, plain)  # neither is always first
            spent = {platform.url: asyncio.run(block_s(platform, options.submissions)) for platform in pair}
            milliseconds = {url: 1000 * seconds / options.submissions for url, seconds in spent.items()}
            if number < 0:
                continue  # the first block warms up
            quotients.append(spent[traced.url] / spent[plain.url])
            print(f"without {milliseconds[plain.url]:.2f} ms, with {milliseconds[traced.url]:.2f} ms", flush=True)
    print(
        f"processor time of a submission with traces: {statistics.median(quotients):.3f} × "
        f"({min(quotients):.3f}–{max(quotients):.3f})"
    )


if __name__ == "__main__":
    main()
