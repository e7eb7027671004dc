import { CircleAlert, CircleCheck, LoaderCircle } from "lucide-react";
import { useEffect, useState } from "react";
import { ApiError } from "~/api/client";
import type { Mistake } from "~/api/types";
import { Sentence } from "~/components/parts";

/* A text that is written here and checked by the API: a job's or a study's spec. */

const PAUSE_MS = 250;
export const NO_MISTAKES: readonly Mistake[] = [];

/** `value`: what the API made of a text that is good. */
export type Check<T> =
  { state: "checking" } | { state: "good"; value: T } | { state: "bad"; error: unknown; mistakes: readonly Mistake[] };

/** What the API says of the text, a moment after the last key. `ask` is always the same function. */
export function useCheck<T>(text: string, ask: (text: string, signal: AbortSignal) => Promise<T>): Check<T> {
  const [check, setCheck] = useState<Check<T>>({ state: "checking" });
  useEffect(() => {
    const abort = new AbortController();
    setCheck((before) => (before.state === "bad" ? before : { state: "checking" }));
    const timer = setTimeout(async () => {
      try {
        setCheck({ state: "good", value: await ask(text, abort.signal) });
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
  }, [text, ask]);
  return check;
}

export function Verdict({ check, isBroken = false }: { check: Check<unknown>; isBroken?: boolean }) {
  const [Icon, tone, words] =
    check.state === "bad" || isBroken
      ? ([
          CircleAlert,
          "red",
          check.state === "bad" && check.mistakes.length > 1 ? `${check.mistakes.length} mistakes` : "not ready",
        ] as const)
      : check.state === "checking"
        ? ([LoaderCircle, "grey", "checking"] as const)
        : ([CircleCheck, "green", "checked by the server"] as const);
  return (
    <span className={`state tone-${tone}`} role="status">
      <Icon size={15} className={tone === "grey" ? "spin" : ""} aria-hidden="true" /> {words}
    </span>
  );
}

/** All that is wrong, below the text. */
export function Mistakes({ check }: { check: Check<unknown> }) {
  if (check.state !== "bad") return null;
  const words = check.error instanceof Error ? check.error.message : String(check.error);
  const told = check.mistakes.length > 0 ? check.mistakes : [{ path: "", message: words, hint: null }];
  return (
    <ul className="mistakes">
      {told.map((mistake) => (
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
