import { expect, test } from "vitest";
import { readPages } from "./paging";

/** A list of so many numbers, in pages of ten. */
const pages = (count: number) => (cursor: string | undefined) => {
  const start = Number(cursor ?? 0);
  const items = Array.from({ length: Math.min(10, count - start) }, (_, i) => start + i);
  return Promise.resolve({ items, next_cursor: start + 10 < count ? String(start + 10) : null });
};

test("a list continues after its first page, and has a cursor where it is cut", async () => {
  const whole = await readPages(100, pages(34));
  expect(whole.items).toEqual(Array.from({ length: 34 }, (_, i) => i));
  expect(whole.next_cursor).toBeNull();
  const cut = await readPages(20, pages(34));
  expect(cut.items.length).toBe(20);
  expect(cut.next_cursor).toBe("20");
  expect(await readPages(20, pages(0))).toEqual({ items: [], next_cursor: null });
});
