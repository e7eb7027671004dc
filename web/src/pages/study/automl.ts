import type { Automl } from "~/api/types";
import { number } from "~/lib/format";

/* Texts of the AutoML leaderboard. */

export type LeaderboardRow = NonNullable<Automl["leaderboard"]>[number];

/** Whether a study was created by AutoML, by the label of its trials' jobs. */
export const isAutoml = (labels: Record<string, string> | null | undefined): boolean =>
  labels?.["automl"] !== undefined;

/** The score and its spread over folds. */
export const formatScore = (row: LeaderboardRow): string =>
  row.spread == null ? number(row.score) : `${number(row.score)} ± ${Number(row.spread.toPrecision(2))}`;

/** The parameters of a model, without its family's prefix. */
export const formatPoint = (row: Pick<LeaderboardRow, "family" | "parameters">): string =>
  Object.entries(row.parameters ?? {})
    .map(
      ([name, value]) =>
        `${name.startsWith(`${row.family}_`) ? name.slice(row.family.length + 1) : name} ${number(value)}`,
    )
    .join(", ");

export interface FamilyBest {
  family: string;
  /** Undefined: no score yet. */
  row: LeaderboardRow | undefined;
  /** Models of the family with a score. */
  trialCount: number;
}

/** The best model of each family, best family first; families without a score last, in search order. */
export function bestOfFamilies(found: Pick<Automl, "families" | "leaderboard">): FamilyBest[] {
  const rows = found.leaderboard ?? [];
  const all = found.families.map((family) => {
    const own = rows.filter((row) => row.family === family);
    return { family, row: own[0], trialCount: own.length };
  });
  const rank = (family: FamilyBest) => family.row?.rank ?? rows.length + 1;
  return all.sort((a, b) => rank(a) - rank(b));
}
