"""The jobs page with 10,000 jobs in a real Chromium: LCP, INP and CLS, the JavaScript that the first page needs, and how
long a new log line takes to the screen.

Each round is a browser without a cache. INP is the slowest of a round's interactions (scrolling by keys, a filter, a
choice, the palette), as Chromium itself reports them.

    python benchmarks/web_pages.py --rounds 5
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from _embedded import embedded_platform
from api_load import fill_queue

OBSERVE = """
window.seen = {lcp: 0, cls: 0, inp: 0};
const watch = (type, take, more = {}) => new PerformanceObserver((list) => list.getEntries().forEach(take)).observe({type, buffered: true, ...more});
watch("largest-contentful-paint", (entry) => { window.seen.lcp = entry.startTime; });
watch("layout-shift", (entry) => { if (!entry.hadRecentInput) window.seen.cls += entry.value; });
watch("event", (entry) => { if (entry.interactionId) window.seen.inp = Math.max(window.seen.inp, entry.duration); }, {durationThreshold: 16});
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
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
        "performance.getEntriesByType('resource').filter((one) => one.name.endsWith('.js')).reduce((sum, one) => sum + one.encodedBodySize, 0)"
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
    seen = page.evaluate("window.seen")
    context.close()
    return {"lcp": lcp, "inp": seen["inp"], "cls": seen["cls"], "script_kb": script_bytes / 1000}


def measure_line(browser: Any, url: str, token: str) -> float:
    """Milliseconds from a line's own time to its row in the page, the slowest of ten lines."""
    from trainmaster import Client

    with Client(url, token=token) as client:
        script = "import time\nfor i in range(30):\n    print(f'at={time.time() * 1000:.0f}', flush=True)\n    time.sleep(0.5)"
        job = client.submit_job({"name": "talks", "command": ["python3", "-c", script], "workers": 1, "priority": 100})
    context = browser.new_context(base_url=url)
    context.request.post("/api/v1/session", data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"})
    page = context.new_page()
    page.goto(f"/jobs/{job.id}/logs")
    page.locator(".log-line").first.wait_for(timeout=60_000)
    slowest = page.evaluate(
        """() => new Promise((done) => {
          let seen = 0, slowest = 0;
          const known = new Set([...document.querySelectorAll(".log-line")].map((line) => line.textContent));
          const look = () => {
            for (const line of document.querySelectorAll(".log-line")) {
              const at = line.textContent.match(/at=(\\d+)/);
              if (at === null || known.has(line.textContent)) continue;
              known.add(line.textContent);
              seen += 1;
              slowest = Math.max(slowest, Date.now() - Number(at[1]));
            }
            if (seen >= 10) done(slowest); else requestAnimationFrame(look);
          };
          look();
        })"""
    )
    context.close()
    return float(slowest)


def main() -> int:
    options = parse()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("There is no Chromium on this machine (apt-get install chromium).")
    from playwright.sync_api import sync_playwright

    with embedded_platform() as running, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        line_ms = [measure_line(browser, running.url, running.token) for _ in range(3)]
        fill_queue(f"sqlite:///{running.home}/trainmaster.sqlite3", options.jobs)
        time.sleep(5)  # the planner's first look at them all
        rounds = [measure(browser, running.url, running.token) for _ in range(options.rounds)]
        browser.close()
    print(f"{options.jobs} jobs, {options.rounds} rounds; median (least to most)")
    for name in ("lcp", "inp", "cls", "script_kb"):
        values = sorted(one[name] for one in rounds)
        print(f"{name:10} {values[len(values) // 2]:8.3f} ({values[0]:.3f} to {values[-1]:.3f})")
    print(f"log line to screen, slowest of ten: {', '.join(f'{value:.0f} ms' for value in line_ms)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
