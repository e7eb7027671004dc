import type { ExpectedStart } from "~/api/types";
import { withFullStop } from "~/lib/format";
import { useNow } from "~/lib/time/now";
import { formatStart } from "~/lib/time/timeScale";
import { Sentence } from "./parts";

/** The expected start in local time, or the planner's own sentence where it has no time. */
export function ExpectedStartText({ start }: { start: ExpectedStart }) {
  const { about, between } = formatStart(start, useNow());
  if (!about || start.code === "now") {
    return (
      <p>
        <Sentence text={withFullStop(start.sentence)} />
      </p>
    );
  }
  return (
    <p className="num" title={start.sentence}>
      Expected start: {about}
      {between && ` (${between})`}
    </p>
  );
}
