import type { ModelChange } from "~/api/types";

/* Texts of a model's history. */

const TEXTS: Record<string, [string, string]> = {
  "model.created": ["Model created", "green"],
  "model.deleted": ["Model deleted", "red"],
  "version.registered": ["Version registered", "green"],
  "version.ready": ["Version ready", "green"],
  "version.failed": ["Version failed", "red"],
  "version.deleted": ["Version deleted", "red"],
  "protection.set": ["Protected", "violet"],
  "protection.cleared": ["Protection removed", "grey"],
};

/** The text of a change and the colour of its dot. An unknown change is shown by its code. */
export function changeText(change: ModelChange): { text: string; tone: string } {
  const { what, name, before, after } = change;
  switch (what) {
    case "stage.changed":
      return {
        text: `Stage ${before ?? "none"} → ${after ?? "none"}`,
        tone: after === "production" ? "green" : "amber",
      };
    case "alias.moved":
      return {
        text:
          before == null ? `@${name} set to v${after ?? "?"}` : `@${name} moved from v${before} to v${after ?? "?"}`,
        tone: "blue",
      };
    case "alias.kept":
      return { text: `@${name} stays at v${after ?? "?"}`, tone: "grey" };
    case "alias.removed":
      return { text: `@${name} removed`, tone: "grey" };
    default: {
      const [text, tone] = TEXTS[what] ?? [what, "grey"];
      return { text, tone };
    }
  }
}
