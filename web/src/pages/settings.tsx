import { useQuery } from "@tanstack/react-query";
import { CircleAlert, CircleCheck } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { healthQuery, meQuery } from "~/api/queries";
import { Skeleton, Card, CopyButton, Failure, PageHead, Sentence } from "~/components/parts";
import { LocalTime } from "~/components/time";
import { setTheme, type Theme, useTheme } from "~/lib/browser/theme";

export function SettingsPage() {
  return (
    <div className="page-body">
      <PageHead title="Settings" />
      <div className="columns even">
        <AccountCard />
        <ThemeCard />
        <PlatformCard />
        <LoginLinkCard />
      </div>
    </div>
  );
}

function AccountCard() {
  const { data: me, error, isPending, refetch } = useQuery(meQuery);
  return (
    <Card title="Account">
      {isPending ? (
        <Skeleton rows={3} />
      ) : me === undefined ? (
        <Failure error={error} retry={() => void refetch()} />
      ) : (
        <dl className="facts">
          <dt>User</dt>
          <dd>{me.user}</dd>
          <dt>Permissions</dt>
          <dd>{me.is_admin ? "all (platform admin)" : me.scopes.join(", ")}</dd>
          <dt>Projects</dt>
          <dd>
            {Object.entries(me.projects ?? {}).map(([name, role]) => (
              <div key={name}>
                {name} <span className="dimmer">{role}</span>
              </div>
            ))}
          </dd>
        </dl>
      )}
    </Card>
  );
}

const THEMES: readonly [Theme, string][] = [
  ["system", "System theme"],
  ["light", "Light"],
  ["dark", "Dark"],
];

function ThemeCard() {
  const theme = useTheme();
  return (
    <Card title="Appearance">
      <fieldset className="stack">
        <legend className="only-read">Theme</legend>
        {THEMES.map(([value, label]) => (
          <label key={value} className="row">
            <input
              type="radio"
              name="theme"
              className="check"
              checked={theme === value}
              onChange={() => setTheme(value)}
            />{" "}
            {label}
          </label>
        ))}
        <p className="dimmer">Saved in this browser.</p>
      </fieldset>
    </Card>
  );
}

const COMPONENTS: Record<string, string> = {
  database: "stores all state",
  scheduler: "plans and monitors jobs",
  nodes: "compute machines",
  executor: "starts and stops replicas",
  wakeups: "wakes the scheduler",
};

function PlatformCard() {
  const { data, error, isPending, refetch } = useQuery(healthQuery);
  return (
    <Card title="Platform" aside={data && <span className="dimmer num">{data.version}</span>}>
      {isPending ? (
        <Skeleton rows={4} />
      ) : data === undefined ? (
        <Failure error={error} retry={() => void refetch()} />
      ) : (
        <ul className="stack">
          {Object.entries(data.parts ?? {}).map(([part, status]) => (
            <li key={part} className="row top">
              {status === "ok" ? (
                <CircleCheck size={15} className="tone-green" aria-label="ok" />
              ) : (
                <CircleAlert size={15} className="tone-amber" aria-label="degraded" />
              )}
              <span className="part-name">{part}</span>
              <span className="grow dim wrap">
                {status === "ok" ? (COMPONENTS[part] ?? status) : <Sentence text={status} />}
              </span>
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}

function LoginLinkCard() {
  const [loginCode, setLoginCode] = useState<{ code: string; expires_at: string } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const make = async () => {
    setError(null);
    try {
      setLoginCode(await unwrap(api.POST("/api/v1/login/codes")));
    } catch (failure) {
      setError(failure);
    }
  };
  const link = loginCode ? `${window.location.origin}/login?code=${loginCode.code}` : "";
  return (
    <Card title="Log in on another device">
      <div className="stack">
        <p className="dim">A single-use login link, for example for your phone.</p>
        {error !== null && <Failure error={error} />}
        {loginCode === null ? (
          <div>
            <button type="button" className="button" onClick={make}>
              Create a link
            </button>
          </div>
        ) : (
          <>
            <code className="wrap">{link}</code>
            <div className="row">
              <CopyButton text={link} />
              <span className="dimmer">
                valid until <LocalTime at={loginCode.expires_at} />
              </span>
            </div>
          </>
        )}
      </div>
    </Card>
  );
}
