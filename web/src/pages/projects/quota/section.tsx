import { useQuery } from "@tanstack/react-query";
import { Pencil } from "lucide-react";
import { type ReactNode, useState } from "react";
import { quotaQuery } from "~/api/planner";
import type { Quota, QuotaLine } from "~/api/types";
import { Skeleton, Failure, Warnings } from "~/components/parts";
import { bytes, number } from "~/lib/format";
import { Ago } from "~/components/time";
import { isBytes } from "./changes";
import { QuotaForm } from "./form";

/** A project's quota and its present use. */
export function QuotaSection({ project, isAdmin }: { project: string; isAdmin: boolean }) {
  const { data, error, refetch } = useQuery(quotaQuery(project));
  const [isOpen, setOpen] = useState(false);
  return (
    <section className="stack">
      <div className="row">
        <h2 className="grow">Quota and share</h2>
        {isAdmin && data && (
          <button type="button" className="button small" onClick={() => setOpen(true)}>
            <Pencil size={14} aria-hidden="true" /> Set quota and weight
          </button>
        )}
      </div>
      {data !== undefined ? (
        <>
          <Warnings warnings={data.warnings ?? []} />
          <Meters quota={data} />
        </>
      ) : error !== null ? (
        <Failure error={error} retry={() => void refetch()} />
      ) : (
        <section className="card">
          <div className="body">
            <Skeleton rows={4} height={22} />
          </div>
        </section>
      )}
      {data && <QuotaForm quota={data} isOpen={isOpen} close={() => setOpen(false)} />}
    </section>
  );
}

export const amount = (what: string, value: number): string => (isBytes(what) ? bytes(value) : number(value));
const NAMES: Record<string, string> = {
  gpus: "GPUs",
  cpu: "CPUs",
  memory: "Memory",
  jobs: "Concurrent jobs",
  storage: "Storage",
};
export const lineName = (what: string): string => NAMES[what] ?? what.replace("gpus/", "");

/** "8 GPUs", "2 h100", "64 GiB of memory", "1 job". */
function holding([what, value]: [string, number]): string {
  const noun = { gpus: "GPU", cpu: "CPU", jobs: "job" }[what];
  if (what === "memory") return `${bytes(value)} of memory`;
  return noun ? `${number(value)} ${noun}${value === 1 ? "" : "s"}` : `${number(value)} ${lineName(what)}`;
}

function Meters({ quota }: { quota: Quota }) {
  const users = (quota.users ?? []).filter(
    (user) =>
      [user.used, user.limit, user.guaranteed].some((part) => Object.keys(part ?? {}).length > 0) ||
      (user.weight ?? 1) !== 1,
  );
  return (
    <section className="card" aria-label="Quota">
      <dl className="quota-facts">
        <div>
          <dt>Weight</dt>
          <dd className="num">{number(quota.weight)}</dd>
        </div>
        <div>
          <dt>Max priority</dt>
          <dd className="num">{quota.max_priority ?? "any"}</dd>
        </div>
      </dl>
      <ul className="quota-lines">
        {(quota.lines ?? []).map((line) => (
          <Meter key={line.what} line={line}>
            {line.what === "storage" && quota.storage && <StorageParts storage={quota.storage} />}
          </Meter>
        ))}
      </ul>
      {users.length > 0 && (
        <ul className="plain-list quota-users">
          {users.map((user) => (
            <li key={user.user} className="row small">
              <span className="strong share-user cut">{user.user}</span>
              <span className="grow dim">
                uses{" "}
                {Object.entries(user.used ?? {})
                  .map(holding)
                  .join(", ") || "nothing"}
              </span>
              {(user.weight ?? 1) !== 1 && <span className="tag num">weight {number(user.weight)}</span>}
              {Object.keys(user.limit ?? {}).length > 0 && (
                <span className="tag num">
                  limit{" "}
                  {Object.entries(user.limit ?? {})
                    .map(holding)
                    .join(", ")}
                </span>
              )}
              {Object.keys(user.guaranteed ?? {}).length > 0 && (
                <span className="tag num">
                  guaranteed{" "}
                  {Object.entries(user.guaranteed ?? {})
                    .map(holding)
                    .join(", ")}
                </span>
              )}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

/** The part of its limit from which the use of a resource is shown as nearly full. */
const warningLevel = (what: string): number => (what === "storage" ? 0.8 : 1);

const PARTS = ["outputs", "models", "archives", "uploads", "metrics"] as const;

/** What takes the storage of a project, and when that was measured. */
function StorageParts({ storage }: { storage: NonNullable<Quota["storage"]> }) {
  const parts = PARTS.flatMap((part) => {
    const size = storage.parts?.[part] ?? 0;
    return size > 0 ? [`${part} ${bytes(size)}`] : [];
  });
  return (
    <div className="dimmer small num">
      {storage.measured_at ? (
        <>
          {parts.join(" · ")}
          {parts.length > 0 && " · "}measured <Ago at={storage.measured_at} />
        </>
      ) : (
        "not measured yet"
      )}
    </div>
  );
}

function Meter({ line, children }: { line: QuotaLine; children?: ReactNode }) {
  const { what, used = 0, limit, guaranteed, user_limit: each, capacity } = line;
  const isLimited = limit !== null && limit !== undefined;
  const scale = Math.max(limit ?? 0, guaranteed ?? 0, used, isLimited ? 0 : (capacity ?? 0)) || 1;
  const at = (value: number) => `${(100 * Math.min(value, scale)) / scale}%`;
  const labels = [
    isLimited ? `limit ${amount(what, limit)}` : "no limit",
    guaranteed != null ? `guaranteed ${amount(what, guaranteed)}` : "",
    each != null ? `per user ${amount(what, each)}` : "",
    capacity != null ? `capacity ${amount(what, capacity)}` : "",
  ].filter(Boolean);
  return (
    <li>
      <div className="row small">
        <span className={`grow ${what.includes("/") ? "mono quota-model" : "strong"}`}>{lineName(what)}</span>
        <span className="num">
          <strong>{amount(what, used)}</strong>
          <span className="dim">{isLimited ? ` of ${amount(what, limit)}` : " in use"}</span>
        </span>
      </div>
      <div
        className="quota-bar"
        role="meter"
        aria-label={`${lineName(what)}: ${amount(what, used)} in use, ${labels.join(", ")}`}
        aria-valuenow={used}
        aria-valuemin={0}
        aria-valuemax={scale}
      >
        {(isLimited || capacity != null) && (
          <span className={isLimited && used >= limit * warningLevel(what) ? "full" : ""} style={{ width: at(used) }} />
        )}
        {guaranteed != null && <i className="mark-guaranteed" style={{ left: at(guaranteed) }} title="guaranteed" />}
        {isLimited && <i className="mark-limit" style={{ left: at(limit) }} title="limit" />}
      </div>
      <div className="dimmer small num">{labels.join(" · ")}</div>
      {children}
    </li>
  );
}
