import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { automlQuery, isStudyOver } from "~/api/studies";
import type { Automl, StudyDetail } from "~/api/types";
import { Skeleton, Card, Failure, Sentence, TableBox } from "~/components/parts";
import { bestOfFamilies, formatPoint, formatScore } from "./automl";
import { counted, duration, number } from "~/lib/format";

const SHOWN = 12;

/** Of AutoML: every model that was tried, the best first, and what the data say of themselves. */
export function Leaderboard({ study, results }: { study: StudyDetail; results: number }) {
  const { data, error, isPending, refetch } = useQuery(automlQuery(study.id, results, isStudyOver(study.state)));
  const [isAll, setAll] = useState(false);
  const rows = data?.leaderboard ?? [];
  const shown = isAll ? rows : rows.slice(0, SHOWN);
  return (
    <Card
      title="Leaderboard"
      flush
      aside={data && <span className="dim small">{data.target ? `${data.task} of ${data.target}` : data.task}</span>}
    >
      {error !== null && !data ? (
        <div className="body">
          <Failure error={error} retry={() => void refetch()} />
        </div>
      ) : isPending ? (
        <div className="body">
          <Skeleton rows={5} height={28} />
        </div>
      ) : data === undefined || rows.length === 0 ? (
        <p className="body dim">No model has a score yet.</p>
      ) : (
        <>
          <Families study={study.id} found={data} />
          <TableBox label="Leaderboard">
            <table className="table leaderboard">
              <thead>
                <tr>
                  <th className="right">Rank</th>
                  <th>Family</th>
                  <th className="right">{data.metric}</th>
                  <th className="right">Took</th>
                  <th>Parameters</th>
                </tr>
              </thead>
              <tbody>
                {shown.map((row) => (
                  <tr key={row.trial} className={row.is_whole ? "" : "dim"}>
                    <td className="num right">{row.rank}</td>
                    <td className="nowrap">
                      <span className={row.rank === 1 ? "strong" : ""}>{row.family}</span>
                      {!row.is_whole && <span className="dimmer small"> stopped early</span>}
                      <span className="row tight small replica-links">
                        <Link to="/studies/$study/trials" params={{ study: study.id }} search={{ trial: row.trial }}>
                          trial {row.trial}
                        </Link>
                        {row.job && (
                          <Link to="/jobs/$job" params={{ job: row.job }} className="dim">
                            its job
                          </Link>
                        )}
                      </span>
                    </td>
                    <td className={`num right nowrap${row.rank === 1 ? " strong" : ""}`} title={String(row.score)}>
                      {formatScore(row)}
                    </td>
                    <td className="num right nowrap dim">{row.seconds == null ? "–" : duration(row.seconds)}</td>
                    <td className="dim wrap small">{formatPoint(row) || "–"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </TableBox>
        </>
      )}
      {data && (
        <div className="leaderboard-foot stack tight">
          {rows.length > SHOWN && (
            <button type="button" className="button small" onClick={() => setAll(!isAll)}>
              {isAll ? `Show the first ${SHOWN}` : `Show all ${counted(rows.length, "model")}`}
            </button>
          )}
          {(data.notes ?? []).map((note) => (
            <p key={note} className="dim small">
              <Sentence text={note} />
            </p>
          ))}
          <p className="dimmer small">
            Scores are of the validation: the first one is the best of many, and so a little too good. The test below
            the winner is not.
          </p>
        </div>
      )}
    </Card>
  );
}

/** The best of each family, as far as there is one. */
function Families({ study, found }: { study: string; found: Automl }) {
  const best = bestOfFamilies(found);
  return (
    <ul className="leaderboard-families" aria-label="The best of each family">
      {best.map(({ family, row, tried }) => (
        <li key={family}>
          <span className="dim small">{family}</span>
          {row === undefined ? (
            <span>–</span>
          ) : (
            <Link
              to="/studies/$study/trials"
              params={{ study }}
              search={{ trial: row.trial }}
              className={`num${row.rank === 1 ? " strong" : ""}`}
              aria-label={`The best of ${family}: ${number(row.score)}, trial ${row.trial}`}
            >
              {number(row.score)}
            </Link>
          )}
          <span className="dimmer small num">{row === undefined ? "no score yet" : counted(tried, "model")}</span>
        </li>
      ))}
    </ul>
  );
}

/** The honest figure: of the registered model, on rows that no trial saw. */
export function FinalTest({ study, results }: { study: StudyDetail; results: number }) {
  const { data } = useQuery(automlQuery(study.id, results, isStudyOver(study.state)));
  if (data === undefined) return null;
  const { test, metric, winner } = data;
  const others = Object.entries(test?.metrics ?? {}).filter(([name]) => name !== metric);
  return (
    <Card title="Test of the winner">
      {test == null ? (
        <p className="dim">
          {winner == null
            ? "When the search is over, the best model is fitted once more and tested once, on rows that no trial saw."
            : ["succeeded", "failed", "cancelled", "expired"].includes(winner.job_state ?? "")
              ? "Its run told no test; its log says why."
              : "The best model is being fitted once more and tested."}
        </p>
      ) : (
        <div className="stack tight">
          <p>
            <span className="strong num">
              {metric} {number(test.score)}
            </span>
            {test.low != null && test.high != null && (
              <>
                , with 95 % between <span className="num">{number(test.low)}</span> and{" "}
                <span className="num">{number(test.high)}</span>
              </>
            )}
            , on {counted(test.rows, "row")} that no trial saw.
          </p>
          {test.hint && <p className="note warn">{test.hint}</p>}
          {others.length > 0 && (
            <dl className="facts">
              {others.map(([name, value]) => (
                <Figure key={name} name={name} value={value} />
              ))}
            </dl>
          )}
        </div>
      )}
    </Card>
  );
}

function Figure({ name, value }: { name: string; value: number }) {
  return (
    <>
      <dt>{name}</dt>
      <dd className="num" title={String(value)}>
        {number(value)}
      </dd>
    </>
  );
}
