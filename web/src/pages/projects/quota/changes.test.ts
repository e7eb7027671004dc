import { describe, expect, it } from "vitest";
import type { Quota } from "~/api/types";
import { userChanges, formatAmount } from "./changes";

const QUOTA = {
  project: "vision",
  weight: 1,
  lines: [{ what: "gpus" }, { what: "memory" }, { what: "storage" }],
  users: [{ user: "ada", limit: { gpus: 4, memory: 2 ** 36 }, used: {}, weight: 2 }],
} as unknown as Quota;

describe("limits and weights of users", () => {
  const asked = (fields: Record<string, string>) =>
    userChanges(QUOTA, ["ada", "grace"], (name) => fields[name] ?? null);

  it("omits unchanged values", () => {
    expect(formatAmount("memory", 2 ** 36)).toBe("64Gi");
    expect(
      asked({ "users.ada.gpus": "4", "users.ada.memory": "64Gi", "user_weights.ada": "2", "user_weights.grace": "" }),
    ).toEqual({
      users: {},
      user_guaranteed: {},
      user_weights: {},
    });
  });

  it("has storage in bytes with units, and for the whole project alone", () => {
    expect(formatAmount("storage", 10 * 2 ** 30)).toBe("10Gi");
    expect(asked({ "users.ada.storage": "1Gi", "user_guaranteed.ada.storage": "1Gi" }).users).toEqual({});
  });

  it("sends changed values, and null for removed ones", () => {
    expect(
      asked({
        "users.ada.gpus": "",
        "users.grace.gpus": " 0.5 ",
        "user_weights.ada": "",
        "user_weights.grace": "1.5",
        "user_guaranteed.ada.gpus": "2",
      }),
    ).toEqual({
      users: { ada: { gpus: null }, grace: { gpus: "0.5" } },
      user_guaranteed: { ada: { gpus: "2" } },
      user_weights: { ada: null, grace: 1.5 },
    });
  });

  it("rejects an invalid weight", () => {
    expect(() => asked({ "user_weights.ada": "much" })).toThrow("The weight of ada is a number above 0");
  });
});
