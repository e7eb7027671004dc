import { useState } from "react";
import type { JobDetail } from "~/api/types";
import { Card } from "~/components/parts";
import type { Question } from "~/pages/whatIf/question";
import { WhatIfPanel } from "~/pages/whatIf/panel";

/** What-if questions about a waiting job. */
export function WhatIfCard({ job }: { job: JobDetail }) {
  const [questions, setQuestions] = useState<readonly Question[]>([]);
  if (job.state !== "queued") return null;
  return (
    <Card title="What if">
      <WhatIfPanel subject={{ job: job.id }} spec={job.spec} questions={questions} set={setQuestions} />
    </Card>
  );
}
