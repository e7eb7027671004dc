import { Dialog } from "@base-ui/react/dialog";
import { CircleHelp } from "lucide-react";
import { useState } from "react";
import type { JobSpec } from "~/api/types";
import type { Question } from "./question";
import { WhatIfPanel } from "./panel";

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
