import type { Quota } from "~/api/types";

/* Changes of a quota form for the API: only changed values are sent; `null` removes a limit. */

const GIB = 2 ** 30;

export const isBytes = (what: string): boolean => what === "memory" || what === "storage";

/** Whether users of a project can have this resource by themselves, or be guaranteed it. */
export const isShared = (what: string): boolean => what !== "storage";

/** An amount as text that the server can parse; empty if none is set. */
export function formatAmount(what: string, value: number | null | undefined): string {
  if (value === null || value === undefined) return "";
  if (!isBytes(what)) return String(value);
  return value % GIB === 0 ? `${value / GIB}Gi` : String(value);
}

type Amounts = Record<string, string | null>;

export interface UserChanges {
  users: Record<string, Amounts>;
  user_guaranteed: Record<string, Amounts>;
  user_weights: Record<string, number | null>;
}

/**
 * Changed limits (`users.ada.gpus`), guarantees (`user_guaranteed.ada.gpus`) and weights (`user_weights.ada`) of
 * users. `field` returns the text of a form field, null if the form has no such field.
 */
export function userChanges(
  quota: Quota,
  names: readonly string[],
  field: (name: string) => string | null,
): UserChanges {
  const found: UserChanges = { users: {}, user_guaranteed: {}, user_weights: {} };
  for (const name of names) {
    const known = (quota.users ?? []).find((user) => user.user === name);
    for (const [part, before] of [
      ["users", known?.limit],
      ["user_guaranteed", known?.guaranteed],
    ] as const) {
      const amounts: Amounts = {};
      for (const { what } of (quota.lines ?? []).filter((line) => isShared(line.what))) {
        const text = field(`${part}.${name}.${what}`)?.trim();
        if (text === undefined || text === formatAmount(what, before?.[what])) continue;
        amounts[what] = text === "" ? null : text;
      }
      if (Object.keys(amounts).length > 0) found[part][name] = amounts;
    }
    const text = field(`user_weights.${name}`)?.trim();
    if (text === undefined || (text === "" ? 1 : Number(text)) === (known?.weight ?? 1)) continue;
    const weight = text === "" ? null : Number(text);
    if (Number.isNaN(weight)) throw new Error(`The weight of ${name} is a number above 0, such as 2.`);
    found.user_weights[name] = weight;
  }
  return found;
}
