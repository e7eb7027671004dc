import type { ModelChange } from "~/api/types";

/* What a line of a model's history says, in words. */

const WORDS: Record<string, [string, string]> = {
  "model.created": ["Model created", "green"],
  "model.deleted": ["Model deleted", "red"],
  "version.registered": ["Version registered", "green"],
  "version.ready": ["Version ready", "green"],
  "version.failed": ["Version failed", "red"],
  "version.deleted": ["Version deleted", "red"],
  "protection.set": ["Protected", "violet"],
  "protection.cleared": ["Protected no more", "grey"],
};

/** A sentence without its end, and the colour of its dot. What is not known here is told by its own name. */
export function historyWords(change: ModelChange): { words: string; tone: string } {
  const { what, name, before, after } = change;
  switch (what) {
    case "stage.changed":
      return {
        words: `Stage ${before ?? "none"} → ${after ?? "none"}`,
        tone: after === "production" ? "green" : "amber",
      };
    case "alias.moved":
      return {
        words:
          before == null ? `@${name} set to v${after ?? "?"}` : `@${name} moved from v${before} to v${after ?? "?"}`,
        tone: "blue",
      };
    case "alias.kept":
      return { words: `@${name} stays at v${after ?? "?"}`, tone: "grey" };
    case "alias.removed":
      return { words: `@${name} removed`, tone: "grey" };
    default: {
      const [words, tone] = WORDS[what] ?? [what, "grey"];
      return { words, tone };
    }
  }
}
