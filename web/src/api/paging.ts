export interface Page<T> {
  items: T[];
  next_cursor?: string | null;
}

/** A list's pages together, at least `limit` items where there are so many. `next_cursor` then says that more follow. */
export async function readPages<T>(limit: number, read: (cursor: string | undefined) => Promise<Page<T>>): Promise<Page<T>> {
  const items: T[] = [];
  let cursor: string | undefined;
  do {
    const page = await read(cursor);
    items.push(...page.items);
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined && items.length < limit);
  return { items, next_cursor: cursor ?? null };
}
