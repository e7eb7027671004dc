export interface Page<T> {
  items: T[];
  next_cursor?: string | null;
}

/** Reads pages until there are at least `limit` items. `next_cursor` is set if more follow. */
export async function readPages<T>(
  limit: number,
  read: (cursor: string | undefined) => Promise<Page<T>>,
): Promise<Page<T>> {
  const items: T[] = [];
  let cursor: string | undefined;
  do {
    const page = await read(cursor);
    items.push(...page.items);
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined && items.length < limit);
  return { items, next_cursor: cursor ?? null };
}
