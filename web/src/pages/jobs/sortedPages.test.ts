import { describe, expect, it } from "vitest";
import type { Job } from "~/api/types";
import { distinctJobs, pagesOnScreen, mergeFresh } from "./sortedPages";

const jobs = (text: string, generation = 1): Job[] => [...text].map((id) => ({ id, generation }) as Job);
const page = (text: string, next: string | null) => ({ items: jobs(text), next_cursor: next });
const known = { pages: [page("ab", "1"), page("cd", "2"), page("e", null)], pageParams: [null, "1", "2"] };
const shown = (pages: readonly { items: Job[] }[]) => pages.map((each) => each.items.map((job) => job.id).join(""));

describe("pages of a sorted list", () => {
  it("are found by the rows on screen", () => {
    expect(pagesOnScreen(known.pages, { from: 0, to: 1 })).toEqual([0, 0]);
    expect(pagesOnScreen(known.pages, { from: 1, to: 4 })).toEqual([0, 2]);
    expect(pagesOnScreen(known.pages, { from: 99, to: 99 })).toEqual([2, 2]);
    expect(pagesOnScreen([], { from: 0, to: 30 })).toEqual([0, 0]);
  });

  it("are replaced when re-read", () => {
    const fresh = mergeFresh(known, new Map([["1", page("xd", "2")]]));
    expect([shown(fresh.pages), fresh.pageParams]).toEqual([
      ["ab", "xd", "e"],
      [null, "1", "2"],
    ]);
  });

  it("are dropped after a page with a new end", () => {
    const fresh = mergeFresh(known, new Map([["1", page("cx", "9")]]));
    expect([shown(fresh.pages), fresh.pageParams]).toEqual([
      ["ab", "cx"],
      [null, "1"],
    ]);
    expect(fresh.pages.at(-1)?.next_cursor).toBe("9");
    expect(shown(mergeFresh(known, new Map([[null, page("a", null)]])).pages)).toEqual(["a"]);
  });

  it("show each job once, in its newest state", () => {
    const moved = [{ items: [...jobs("a"), ...jobs("b", 1)] }, { items: [...jobs("b", 2), ...jobs("a")] }];
    expect(distinctJobs(moved).map((job) => [job.id, job.generation])).toEqual([
      ["a", 1],
      ["b", 2],
    ]);
  });
});
