"""The jobs page with 10,000 jobs in a real Chromium: LCP, INP and CLS, the JavaScript that the first page needs, and
how long a new log line takes to the screen, of a job that says little and of one that says 4 MB a second, and a new
metric to its chart.

Each round is a browser without a cache. INP is the slowest of a round's interactions (scrolling by keys, a filter, a
choice, the palette), as Chromium itself reports them.

    python3 dev.py bench web_pages --rounds 5
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from typing import Any

from benchmarks.control.api_load import fill_queue
from benchmarks.support.embedded import embedded_platform

OBSERVE = """
window.seen = {lcp: 0, cls: 0, inp: 0};
const watch = (type, take, more = {}) =>
  new PerformanceObserver((list) => list.getEntries().forEach(take)).observe({type, buffered: true, ...more});
watch("largest-contentful-paint", (entry) => { window.seen.lcp = entry.startTime; });
watch("layout-shift", (entry) => { if (!entry.hadRecentInput) window.seen.cls += entry.value; });
const keepSlowest = (entry) => {
  if (entry.interactionId) window.seen.inp = Math.max(window.seen.inp, entry.duration);
};
watch("event", keepSlowest, {durationThreshold: 16});
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--live-rounds", type=int, default=2)
    return parser.parse_args()


def measure(browser: Any, url: str, token: str) -> dict[str, float]:
    """One visit: milliseconds, and kB of JavaScript as they came over the wire."""
    context = browser.new_context(base_url=url, viewport={"width": 1440, "height": 900})
    context.request.post("/api/v1/session", data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"})
    page = context.new_page()
    page.add_init_script(OBSERVE)
    page.goto("/jobs")
    page.locator(".grid-body .grid-row").first.wait_for()
    page.wait_for_timeout(2500)  # what comes late would shift the layout now
    script_bytes = page.evaluate(
        "performance.getEntriesByType('resource').filter((one) => one.name.endsWith('.js')).reduce((sum, one) => sum "
        "+ one.encodedBodySize, 0)"
    )
    lcp = page.evaluate("window.seen.lcp")
    page.locator(".grid-table").hover()
    for _ in range(12):
        page.mouse.wheel(0, 3000)
        page.wait_for_timeout(150)
    page.locator(".grid-body .check").nth(5).click()
    page.keyboard.press("/")
    page.keyboard.type("waits-12")
    page.keyboard.press("Escape")
    page.get_by_label("Search jobs").fill("waits-99")
    page.wait_for_timeout(1500)
    vitals = page.evaluate("window.seen")
    context.close()
    return {"lcp": lcp, "inp": vitals["inp"], "cls": vitals["cls"], "script_kb": script_bytes / 1000}


# Lines of 100 bytes, each with its own time; a rate of 0 is two lines a second.
FAST_LOGS = """
import sys, time
rate, until = float(sys.argv[1]), time.time() + 40
burst = max(1, int(rate * 1e6 / 100 / 50))
while time.time() < until:
    began = time.time()
    sys.stdout.write("".join("at=%d %s\\n" % (time.time() * 1000, "." * 82) for _ in range(burst)))
    sys.stdout.flush()
    time.sleep(max(0.001, (0.02 if rate else 0.5) - (time.time() - began)))
"""
# The value n of the metric is printed n half seconds after a moment that both sides know.
COUNTS = """
import sys, time
for n in range(120):
    time.sleep(max(0, float(sys.argv[1]) + n / 2 - time.time()))
    print(f"loss={n} step={n}", flush=True)
"""
# How old the newest line on the screen was when it came there, frame by frame.
WATCH_LINES = """(forMs) => new Promise((done) => {
  const ages = [], end = Date.now() + forMs;
  let newest = 0;
  const look = () => {
    let here = 0;
    for (const line of document.querySelectorAll(".log-line")) {
      here = Math.max(here, Number(line.textContent.match(/at=(\\d+)/)?.[1] ?? 0));
    }
    if (here > newest) { if (newest > 0) ages.push(Date.now() - here); newest = here; }
    if (Date.now() > end) done(ages); else requestAnimationFrame(look);
  };
  look();
})"""
WATCH_CHART = """([startMs, forMs]) => new Promise((done) => {
  const ages = [], end = Date.now() + forMs;
  let newest = -1;
  const look = () => {
    const label = document.querySelector(".chart")?.getAttribute("aria-label") ?? "";
    const here = Number(label.match(/: ([\\d,]+)$/)?.[1] ?? -1);
    if (here > newest) { if (newest >= 0) ages.push(Date.now() - (startMs + here * 500)); newest = here; }
    if (Date.now() > end) done(ages); else requestAnimationFrame(look);
  };
  look();
})"""


def measure_live(
    browser: Any, url: str, token: str, script: str, argument: str, tab: str, watch: str, given: Any
) -> list[float]:
    """Ages in milliseconds of what a job says when its page shows it."""
    from trainmaster import Client

    with Client(url, token=token) as client:
        command = ["python3", "-c", script, argument]
        job = client.submit_job({"name": "talks", "command": command, "workers": 1, "priority": 100})
        context = browser.new_context(base_url=url)
        context.request.post("/api/v1/session", data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"})
        page = context.new_page()
        page.goto(f"/jobs/{job.id}/{tab}")
        page.locator(".log-line, .chart").first.wait_for(timeout=60_000)
        page.wait_for_timeout(3000)  # what was there before the page came is not new
        ages: list[float] = page.evaluate(watch, given)
        context.close()
        client.cancel_job(job.id)
        client.wait_for_job(job.id, timeout_s=60)
    return ages


def summarise(what: str, ages: list[float]) -> str:
    if not ages:
        return f"{what}: nothing came"
    return f"{what}: median {sorted(ages)[len(ages) // 2]:.0f} ms, slowest {max(ages):.0f} ms of {len(ages)}"


def main() -> int:
    options = parse()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("There is no Chromium on this machine (apt-get install chromium).")
    from playwright.sync_api import sync_playwright

    with embedded_platform() as running, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        at = (browser, running.url, running.token)
        live = []
        for _ in range(options.live_rounds):
            for rate in ("0", "4"):
                ages = measure_live(*at, FAST_LOGS, rate, "logs", WATCH_LINES, 10_000)
                live.append(summarise(f"new log line to screen at {rate} MB/s", ages))
            start = round(time.time()) + 1
            ages = measure_live(*at, COUNTS, str(start), "metrics", WATCH_CHART, [start * 1000, 10_000])
            live.append(summarise("new metric to chart", ages))
        fill_queue(f"sqlite:///{running.home}/trainmaster.sqlite3", options.jobs)
        time.sleep(5)  # the planner's first look at them all
        rounds = [measure(browser, running.url, running.token) for _ in range(options.rounds)]
        browser.close()
    print(f"{options.jobs} jobs, {options.rounds} rounds; median (least to most)")
    for name in ("lcp", "inp", "cls", "script_kb"):
        values = sorted(measured[name] for measured in rounds)
        print(f"{name:10} {values[len(values) // 2]:8.3f} ({values[0]:.3f} to {values[-1]:.3f})")
    print("\n".join(sorted(live)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
