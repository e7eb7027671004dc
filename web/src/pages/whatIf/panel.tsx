import { Dialog } from "@base-ui/react/dialog";
import { useQueryClient } from "@tanstack/react-query";
import { CircleHelp, RotateCw } from "lucide-react";
import { useState } from "react";
import { plannerKeys, type WhatIfSubject } from "~/api/planner";
import type { JobSpec } from "~/api/types";
import { UNCHANGED, type Question } from "./question";
import { Answer } from "./answer";
import { QuestionForm } from "./form";

const MOST = 5; // answers next to the present one; with more the oldest is dropped
const FRESH_MS = 60_000; // older answers are refreshed with the next question, so that all are of about the same time

interface WhatIfProps {
  subject: WhatIfSubject;
  spec: JobSpec;
  questions: readonly Question[];
  set: (questions: readonly Question[]) => void;
}

/** A form for questions, and the answers next to the present forecast. */
export function WhatIfPanel({ subject, spec, questions, set }: WhatIfProps) {
  const client = useQueryClient();
  const id = (question: Question) => JSON.stringify(question);
  const ask = (question: Question) => {
    set([...questions.filter((each) => id(each) !== id(question)), question].slice(-MOST));
    const isRepeated = questions.some((each) => id(each) === id(question));
    void client.invalidateQueries({
      queryKey: plannerKeys.whatIf,
      predicate: (query) => isRepeated || query.isStaleByTime(FRESH_MS),
    });
  };
  return (
    <div className="stack what-if">
      <QuestionForm spec={spec} ask={ask} />
      {questions.length > 0 && (
        <section className="stack tight" aria-label="Answers">
          <div className="row">
            <span className="dim small grow">A forecast, not a promise: the cluster may change.</span>
            <button
              type="button"
              className="button small"
              onClick={() => void client.invalidateQueries({ queryKey: plannerKeys.whatIf })}
            >
              <RotateCw size={13} aria-hidden="true" /> Refresh all
            </button>
          </div>
          <ul className="answers" aria-live="polite">
            <Answer subject={subject} spec={spec} question={UNCHANGED} remove={null} />
            {questions.map((question) => (
              <Answer
                key={id(question)}
                subject={subject}
                spec={spec}
                question={question}
                remove={() => set(questions.filter((each) => each !== question))}
              />
            ))}
          </ul>
        </section>
      )}
    </div>
  );
}

/** What-if questions about a spec that is being edited. They survive closing, and apply to the present spec. */
export function WhatIfDialog({ spec }: { spec: JobSpec | null }) {
  const [questions, setQuestions] = useState<readonly Question[]>([]);
  return (
    <Dialog.Root>
      <Dialog.Trigger className="button small" disabled={spec === null}>
        <CircleHelp size={13} aria-hidden="true" /> What if…
      </Dialog.Trigger>
      <Dialog.Portal>
        <Dialog.Backdrop className="backdrop" />
        <Dialog.Popup className="dialog widest">
          <div className="stack">
            <Dialog.Title render={<h2 />}>What if…</Dialog.Title>
            {spec && <WhatIfPanel subject={{ spec }} spec={spec} questions={questions} set={setQuestions} />}
            <div className="row dialog-actions">
              <Dialog.Close className="button">Close</Dialog.Close>
            </div>
          </div>
        </Dialog.Popup>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
