import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { membersQuery, usersQuery } from "~/api/queries";
import type { Quota } from "~/api/types";
import { TableBox } from "~/components/parts";
import { formatAmount, isShared } from "./changes";
import { lineName } from "./section";

/** Settings of single users: their weight in the project, and limits that override the general ones. */
export function UserQuotas({ quota }: { quota: Quota }) {
  const { data: members } = useQuery(membersQuery(quota.project));
  const { data: allUsers } = useQuery(usersQuery);
  const [added, setAdded] = useState<readonly string[]>([]);
  const known = [...(quota.users ?? []).map((user) => user.user), ...(members ?? []).map((member) => member.user)];
  const names = [...new Set(known)].sort().concat(added.filter((name) => !known.includes(name)));
  const others = (allUsers ?? []).map((user) => user.name).filter((name) => !names.includes(name));
  const lines = (quota.lines ?? []).filter((line) => isShared(line.what));
  return (
    <fieldset className="stack tight">
      <legend>Individual users</legend>
      <p className="dim">
        A limit here overrides the limit per user. Guaranteed resources are reclaimed from other users of the project.
        Weight 2 gets twice the share of weight 1.
      </p>
      {names.length === 0 ? (
        <p className="dim">The project has no members yet.</p>
      ) : (
        <TableBox label="Individual users">
          <table className="table quota-form">
            <thead>
              <tr>
                <th>User</th>
                <th>Weight</th>
                <th>
                  <span className="only-read">Limit or guarantee</span>
                </th>
                {lines.map((line) => (
                  <th key={line.what} className={line.what.includes("/") ? "mono" : ""}>
                    {lineName(line.what)}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {names.map((name) => {
                const user = (quota.users ?? []).find((each) => each.user === name);
                return [
                  <tr key={name}>
                    <th scope="rowgroup" rowSpan={2}>
                      {name}
                    </th>
                    <td rowSpan={2}>
                      <input
                        className="input num"
                        name={`user_weights.${name}`}
                        defaultValue={user && user.weight !== 1 ? user.weight : ""}
                        placeholder="1"
                        inputMode="decimal"
                        aria-label={`Weight of ${name}`}
                        autoComplete="off"
                      />
                    </td>
                    <td className="dim small">limit</td>
                    {lines.map((line) => (
                      <td key={line.what}>
                        <input
                          className="input num"
                          name={`users.${name}.${line.what}`}
                          defaultValue={formatAmount(line.what, user?.limit?.[line.what])}
                          placeholder={formatAmount(line.what, line.user_limit)}
                          aria-label={`Limit of ${name}, ${lineName(line.what)}`}
                          autoComplete="off"
                        />
                      </td>
                    ))}
                  </tr>,
                  <tr key={`${name} guaranteed`}>
                    <td className="dim small">guaranteed</td>
                    {lines.map((line) => (
                      <td key={line.what}>
                        {line.what === "jobs" ? null : (
                          <input
                            className="input num"
                            name={`user_guaranteed.${name}.${line.what}`}
                            defaultValue={formatAmount(line.what, user?.guaranteed?.[line.what])}
                            aria-label={`Guaranteed to ${name}, ${lineName(line.what)}`}
                            autoComplete="off"
                          />
                        )}
                      </td>
                    ))}
                  </tr>,
                ];
              })}
            </tbody>
          </table>
        </TableBox>
      )}
      {others.length > 0 && (
        <div>
          <select
            className="input auto"
            aria-label="Another user"
            value=""
            onChange={(event) => setAdded([...added, event.target.value])}
          >
            <option value="">Another user…</option>
            {others.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </div>
      )}
    </fieldset>
  );
}
