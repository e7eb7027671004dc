import { describe, expect, it } from "vitest";
import type { Job } from "~/api/types";
import { EMPTY, mergePage, newestFirst, PAGE, pageAt, FIRST_PAGE, type Rows, timeKey, replacePage } from "./newestRows";

const job = (number: number, more: Partial<Job> = {}): Job =>
  ({
    id: `job-${String(number).padStart(5, "0")}`,
    created_at: new Date(1e12 + number * 1000).toISOString(),
    state: "running",
    ...more,
  }) as Job;
const newest = (from: number, count: number): Job[] => Array.from({ length: count }, (_, i) => job(from - i));
const ids = (jobs: readonly Job[]): string[] => jobs.map((each) => each.id);

describe("a long list", () => {
  it("is sorted even if fractions of seconds differ in length", () => {
    expect(timeKey("2026-11-21T07:00:00Z") < timeKey("2026-11-21T07:00:00.5Z")).toBe(true);
    const [early, late] = [
      job(1, { created_at: "2026-11-21T07:00:00Z" }),
      job(2, { created_at: "2026-11-21T07:00:00.5Z" }),
    ];
    expect([early, late].sort(newestFirst)[0]).toBe(late);
  });

  it("drops missing rows inside a page and keeps rows outside", () => {
    const rows = newest(10, 10);
    const page = { items: [job(10), job(8)], isLast: false };
    expect(ids(replacePage(rows, page, null))).toEqual(ids([job(10), job(8), ...newest(7, 7)]));
    expect(ids(replacePage(rows, { items: [], isLast: true }, job(9)))).toEqual(ids([job(10), job(9)]));
  });

  it("keeps the objects of unchanged rows", () => {
    const rows = newest(3, 3);
    const after = replacePage(rows, { items: [job(3), job(2, { state: "failed" }), job(1)], isLast: true }, null);
    expect(after[0]).toBe(rows[0]);
    expect(after[1]?.state).toBe("failed");
  });

  it("has every job once and in order, for any order of pages and new jobs", () => {
    let all = newest(450, 450);
    const read = (after: Job | null) => {
      const items = all.filter((each) => after === null || newestFirst(after, each) < 0).slice(0, PAGE);
      const last = items.at(-1);
      const isMore = last !== undefined && all.some((each) => newestFirst(last, each) < 0);
      return { items, next_cursor: isMore ? "cursor" : null };
    };
    let rows: Rows = EMPTY;
    const more = () => {
      const end = rows.anchors.at(-1) ?? FIRST_PAGE;
      rows = mergePage(rows, end, read(end.after));
    };
    more();
    more();
    for (let added = 1; added <= 330; added += 30) {
      all = [...newest(450 + added + 29, 30), ...all];
      rows = mergePage(rows, FIRST_PAGE, read(null));
    }
    while (!rows.isWhole) more();
    expect(ids(rows.jobs)).toEqual(ids(all));
    // Whatever is on screen lies on a page that can be asked for again and begins close to it.
    for (let index = 0; index < rows.jobs.length; index += 25) {
      const { after } = pageAt(rows, index);
      const from = after === null ? 0 : rows.jobs.findIndex((each) => each.id === after.id);
      expect(index - from).toBeLessThanOrEqual(2 * PAGE);
    }
  });
});
