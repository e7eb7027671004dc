import { useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useRouter } from "@tanstack/react-router";
import { type FormEvent, useCallback, useEffect, useRef, useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys } from "~/api/queries";
import { Failure, Field } from "~/components/parts";

const route = getRouteApi("/login");

/** The path to open after the login: only paths of this application. */
function safe(next: string | undefined): string {
  return next?.startsWith("/") && !next.startsWith("//") && !next.startsWith("/login") && !next.includes("\\")
    ? next
    : "/jobs";
}

export function LoginPage() {
  const { next, code } = route.useSearch();
  const client = useQueryClient();
  const router = useRouter();
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(code !== undefined);
  const isTried = useRef(false);

  const open = useCallback(
    async (body: { token: string } | { code: string }) => {
      setBusy(true);
      setError(null);
      try {
        client.setQueryData(keys.me, await unwrap(api.POST("/api/v1/session", { body })));
        router.history.replace(safe(next));
      } catch (failure) {
        setError(failure);
        setBusy(false);
      }
    },
    [client, next, router],
  );

  useEffect(() => {
    // A code is valid once, and this effect may run twice.
    if (code === undefined || isTried.current) return;
    isTried.current = true;
    void open({ code });
  }, [code, open]);

  const onSubmit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    void open({ token: String(new FormData(event.currentTarget).get("token")).trim() });
  };

  return (
    <main className="login">
      <div className="card stack large">
        <div className="stack">
          <img src="/icon.svg" alt="" width={40} height={40} />
          <h1>Log in to Trainmaster</h1>
          <p className="dim">A managed training platform for your own machines.</p>
        </div>
        {error !== null && <Failure error={error} />}
        <form className="stack" onSubmit={onSubmit}>
          <Field label="Your token">
            {(props) => (
              <input
                {...props}
                className="input mono"
                name="token"
                type="password"
                autoComplete="current-password"
                required
                placeholder="tm_…"
              />
            )}
          </Field>
          <button type="submit" className="button primary" disabled={isBusy}>
            {isBusy ? "Logging in…" : "Log in"}
          </button>
        </form>
        <p className="dim">
          On the platform's machine, <code>trainmaster token show</code> prints a token, and{" "}
          <code>trainmaster login --link</code> prints a login link. Otherwise ask a platform admin.
        </p>
      </div>
    </main>
  );
}
