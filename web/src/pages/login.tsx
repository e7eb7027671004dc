import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useRouter } from "@tanstack/react-router";
import { type FormEvent, useCallback, useEffect, useRef, useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys, loginProvidersQuery } from "~/api/queries";
import { Failure, Field } from "~/components/parts";

const route = getRouteApi("/login");
const returnRoute = getRouteApi("/login/$provider");

/** The query of the first page: the router parses and rewrites it, and a provider's code may look like a number. */
const FIRST_QUERY = new URLSearchParams(window.location.search);

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

  useEffect(() => {
    // Back from the provider's page, some browsers show this one as it was left.
    const onShow = (event: PageTransitionEvent) => {
      if (event.persisted) setBusy(false);
    };
    window.addEventListener("pageshow", onShow);
    return () => window.removeEventListener("pageshow", onShow);
  }, []);

  const openProvider = async (provider: string) => {
    setBusy(true);
    setError(null);
    try {
      const body = { next: safe(next) };
      const path = { provider };
      const login = await unwrap(api.POST("/api/v1/login/providers/{provider}", { params: { path }, body }));
      window.location.assign(login.authorization_url);
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };

  const onSubmit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    void open({ token: String(new FormData(event.currentTarget).get("token")).trim() });
  };

  const providers = useQuery(loginProvidersQuery).data ?? [];
  return (
    <LoginCard error={error}>
      {providers.length > 0 && (
        <div className="stack">
          {providers.map(({ name, label }) => (
            <button
              key={name}
              type="button"
              className="button primary"
              disabled={isBusy}
              onClick={() => void openProvider(name)}
            >
              Log in with {label}
            </button>
          ))}
          <p className="divider">or</p>
        </div>
      )}
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
        <button type="submit" className={providers.length > 0 ? "button" : "button primary"} disabled={isBusy}>
          {isBusy ? "Logging in…" : "Log in"}
        </button>
      </form>
      <p className="dim">
        On the platform's machine, <code>trainmaster token show</code> prints a token, and{" "}
        <code>trainmaster login --link</code> prints a login link. Otherwise ask a platform admin.
      </p>
    </LoginCard>
  );
}

/** The page to which a provider sends the browser back: it finishes the login. */
export function ProviderReturnPage() {
  const { provider } = returnRoute.useParams();
  const client = useQueryClient();
  const router = useRouter();
  const [error, setError] = useState<unknown>(null);
  const isTried = useRef(false);

  useEffect(() => {
    // An answer is valid once, and this effect may run twice.
    if (isTried.current) return;
    isTried.current = true;
    const query = (name: string) => FIRST_QUERY.get(name);
    const body = {
      state: query("state") ?? "none",
      code: query("code"),
      iss: query("iss"),
      error: query("error"),
      error_description: query("error_description"),
    };
    const params = { path: { provider } };
    unwrap(api.POST("/api/v1/login/providers/{provider}/session", { params, body })).then(
      ({ next, ...caller }) => {
        client.setQueryData(keys.me, caller);
        router.history.replace(safe(next));
      },
      (failure: unknown) => setError(failure),
    );
  }, [client, provider, router]);

  return (
    <LoginCard error={error}>
      {error === null ? (
        <p role="status">Logging in…</p>
      ) : (
        // Not a link of the router: a new login begins without the query of this one.
        <a className="button primary" href="/login">
          Back to the login
        </a>
      )}
    </LoginCard>
  );
}

function LoginCard({ error, children }: { error: unknown; children: React.ReactNode }) {
  return (
    <main className="login">
      <div className="card stack large">
        <div className="stack">
          <img src="/icon.svg" alt="" width={40} height={40} />
          <h1>Log in to Trainmaster</h1>
          <p className="dim">A managed training platform for your own machines.</p>
        </div>
        {error !== null && <Failure error={error} />}
        {children}
      </div>
    </main>
  );
}
