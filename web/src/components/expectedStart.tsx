import type { ExpectedStart } from "~/api/types";
import { withFullStop } from "~/lib/format";
import { useNow } from "~/lib/time/now";
import { formatStart } from "~/lib/time/timeScale";
import { Sentence } from "./parts";

/** The planner's own sentence about a start, and its moments by the clock of who looks. */
export function ExpectedStartText({ start }: { start: ExpectedStart }) {
  const { about, between } = formatStart(start, useNow());
  return (
    <p>
      <Sentence text={withFullStop(start.sentence)} />{" "}
      {about && start.code !== "now" && (
        <span className="num">
          Here that is {about}
          {between && `, from ${between}`}.
        </span>
      )}
    </p>
  );
}
