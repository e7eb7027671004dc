import type { Automl } from "~/api/types";
import { number } from "~/lib/format";

/* What a leaderboard says. */

export type LeaderboardRow = NonNullable<Automl["leaderboard"]>[number];

/** Whether a study was made by AutoML, by the label of its trials' jobs. */
export const isAutoml = (labels: Record<string, string> | null | undefined): boolean =>
  labels?.["automl"] !== undefined;

/** The score, and by how much it differs from fold to fold. */
export const formatScore = (row: LeaderboardRow): string =>
  row.spread == null ? number(row.score) : `${number(row.score)} ± ${Number(row.spread.toPrecision(2))}`;

/** Its parameters; those of its family without the family's name. */
export const formatPoint = (row: Pick<LeaderboardRow, "family" | "parameters">): string =>
  Object.entries(row.parameters ?? {})
    .map(
      ([name, value]) =>
        `${name.startsWith(`${row.family}_`) ? name.slice(row.family.length + 1) : name} ${number(value)}`,
    )
    .join(", ");

export interface FamilyBest {
  family: string;
  /** Undefined: none of it has a score. */
  row: LeaderboardRow | undefined;
  /** Models of it that have one. */
  tried: number;
}

/** The best of each family, the best family first; those without a score at the end, as they are searched. */
export function bestOfFamilies(found: Pick<Automl, "families" | "leaderboard">): FamilyBest[] {
  const rows = found.leaderboard ?? [];
  const all = found.families.map((family) => {
    const own = rows.filter((row) => row.family === family);
    return { family, row: own[0], tried: own.length };
  });
  const rank = (family: FamilyBest) => family.row?.rank ?? rows.length + 1;
  return all.sort((a, b) => rank(a) - rank(b));
}
