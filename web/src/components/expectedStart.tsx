import type { ExpectedStart } from "~/api/types";
import { ended } from "~/lib/format";
import { useNow } from "~/lib/time/now";
import { startWords } from "~/lib/time/timeScale";
import { Sentence } from "./parts";

/** The planner's own sentence about a start, and its moments by the clock of who looks. */
export function StartWords({ start }: { start: ExpectedStart }) {
  const { about, between } = startWords(start, useNow());
  return (
    <p>
      <Sentence text={ended(start.sentence)} />{" "}
      {about && start.code !== "now" && (
        <span className="num">
          Here that is {about}
          {between && `, from ${between}`}.
        </span>
      )}
    </p>
  );
}
