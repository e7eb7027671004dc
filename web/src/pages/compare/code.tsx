import { useQuery } from "@tanstack/react-query";
import { ChevronRight, Equal, FileX } from "lucide-react";
import { useMemo, useState } from "react";
import { codeDifferenceQuery } from "~/api/queries";
import type { CodeFile, JobDetail } from "~/api/types";
import { Skeleton, Card, Empty, Failure } from "~/components/parts";
import { bytes, pluralize } from "~/lib/format";
import { changesOf, type Hunk, hunksOf } from "./textDiff";
import { ComparedJobs } from "./pickJob";

const OPEN_AT_FIRST = 5; // files that are expanded initially
const TONES = { added: "green", removed: "red", changed: "blue" } as const;

/** Files that differ between the code of the first job and another job, line by line. */
export function CodeDifference({ jobs }: { jobs: readonly JobDetail[] }) {
  const [first, ...others] = jobs;
  const [chosen, setChosen] = useState(others[0]?.id ?? "");
  const other = others.find((job) => job.id === chosen) ?? others[0];
  const hasCode = [first, other].some((job) => job?.spec.code);
  const query = useQuery({ ...codeDifferenceQuery(first?.id ?? "", other?.id ?? ""), enabled: hasCode });
  const { data, error, isPending, refetch } = query;
  return (
    <Card title="Code" aside={<ComparedJobs first={first} others={others} chosen={other} choose={setChosen} />} flush>
      {!hasCode ? (
        <Empty icon={FileX} title="Neither job has code" />
      ) : isPending ? (
        <div className="body">
          <Skeleton rows={6} />
        </div>
      ) : data === undefined ? (
        <div className="body">
          <Failure error={error} retry={() => void refetch()} />
        </div>
      ) : data.differ_count === 0 ? (
        <Empty icon={Equal} title="The code is identical" />
      ) : (
        <>
          <p className="body dim">
            {pluralize(data.differ_count, "file")} {data.differ_count === 1 ? "differs" : "differ"},{" "}
            {data.same_count.toLocaleString()} {data.same_count === 1 ? "is" : "are"} identical.
            {data.differ_count > data.items.length && ` The first ${data.items.length.toLocaleString()} are shown.`}
          </p>
          {data.items.map((file, i) => (
            <File key={file.path} file={file} isFirst={i < OPEN_AT_FIRST} />
          ))}
        </>
      )}
    </Card>
  );
}

function File({ file, isFirst }: { file: CodeFile; isFirst: boolean }) {
  const [isOpen, setOpen] = useState(isFirst);
  return (
    <details className="code-file" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary className="row">
        <ChevronRight size={14} aria-hidden="true" />
        <span className="mono wrap grow">{file.path}</span>
        <span className="dimmer num nowrap">{sizes(file)}</span>
        <span className={`small tone-${TONES[file.change]}`}>{file.change}</span>
      </summary>
      {isOpen && <Lines file={file} />}
    </details>
  );
}

function sizes({ size_before: before, size_after: after }: CodeFile): string {
  if (before === null || before === undefined) return bytes(after);
  return after === null || after === undefined ? bytes(before) : `${bytes(before)} → ${bytes(after)}`;
}

function Lines({ file }: { file: CodeFile }) {
  const hunks = useMemo(
    () => (file.note ? null : hunksOf(file.text_before ?? "", file.text_after ?? "")),
    [file.note, file.text_before, file.text_after],
  );
  if (hunks === null) return <p className="code-note dim">{file.note || "Too different for a line-by-line diff."}</p>;
  const { added, removed } = changesOf(hunks);
  return (
    <div
      className="diff-box"
      role="region"
      tabIndex={0}
      aria-label={`${file.path}: ${added} lines added, ${removed} removed`}
    >
      <table className="diff">
        <tbody>
          {hunks.map((hunk, i) => (
            <HunkRows key={hunk.key} hunk={hunk} isFirst={i === 0} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

const SIGNS = { same: " ", added: "+", removed: "−" } as const;

function HunkRows({ hunk, isFirst }: { hunk: Hunk; isFirst: boolean }) {
  return (
    <>
      {!isFirst && (
        <tr className="diff-gap">
          <td colSpan={4}>⋯</td>
        </tr>
      )}
      {hunk.lines.map((line) => (
        <tr key={`${line.before ?? ""},${line.after ?? ""}`} className={line.kind}>
          <td className="diff-number">{line.before}</td>
          <td className="diff-number">{line.after}</td>
          <td className="diff-sign">{SIGNS[line.kind]}</td>
          <td className="diff-text">{line.text}</td>
        </tr>
      ))}
    </>
  );
}
