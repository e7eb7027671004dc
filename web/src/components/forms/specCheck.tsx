import { CircleAlert, CircleCheck, LoaderCircle } from "lucide-react";
import { useEffect, useState } from "react";
import { ApiError } from "~/api/client";
import type { Mistake } from "~/api/types";
import { Sentence } from "~/components/parts";

/* Validation of a job's or study's spec by the API while it is edited. */

const PAUSE_MS = 250;
export const NO_MISTAKES: readonly Mistake[] = [];

/** `value`: the API's result for a valid text. */
export type Check<T> =
  { state: "checking" } | { state: "good"; value: T } | { state: "bad"; error: unknown; mistakes: readonly Mistake[] };

/** Validates the text shortly after the last key press. `validate` must be a stable function. */
export function useCheck<T>(text: string, validate: (text: string, signal: AbortSignal) => Promise<T>): Check<T> {
  const [check, setCheck] = useState<Check<T>>({ state: "checking" });
  useEffect(() => {
    const abort = new AbortController();
    setCheck((before) => (before.state === "bad" ? before : { state: "checking" }));
    const timer = setTimeout(async () => {
      try {
        setCheck({ state: "good", value: await validate(text, abort.signal) });
      } catch (error) {
        if (abort.signal.aborted) return;
        setCheck({
          state: "bad",
          error,
          mistakes: error instanceof ApiError ? (error.problem.errors ?? NO_MISTAKES) : NO_MISTAKES,
        });
      }
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text, validate]);
  return check;
}

export function CheckStatus({ check, isBroken = false }: { check: Check<unknown>; isBroken?: boolean }) {
  const [Icon, tone, message] =
    check.state === "bad" || isBroken
      ? ([
          CircleAlert,
          "red",
          check.state === "bad" && check.mistakes.length > 1 ? `${check.mistakes.length} errors` : "invalid",
        ] as const)
      : check.state === "checking"
        ? ([LoaderCircle, "grey", "checking"] as const)
        : ([CircleCheck, "green", "valid"] as const);
  return (
    <span className={`state tone-${tone}`} role="status">
      <Icon size={15} className={tone === "grey" ? "spin" : ""} aria-hidden="true" /> {message}
    </span>
  );
}

/** All errors, below the text. */
export function Mistakes({ check }: { check: Check<unknown> }) {
  if (check.state !== "bad") return null;
  const message = check.error instanceof Error ? check.error.message : String(check.error);
  const shown = check.mistakes.length > 0 ? check.mistakes : [{ path: "", message, hint: null }];
  return (
    <ul className="mistakes">
      {shown.map((mistake) => (
        <li key={`${mistake.path}${mistake.message}`}>
          {mistake.path && <code>{mistake.path}</code>} <Sentence text={mistake.message} />
          {mistake.hint && (
            <span className="dim">
              : <Sentence text={mistake.hint} />
            </span>
          )}
        </li>
      ))}
    </ul>
  );
}
