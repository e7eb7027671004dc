import { Menu } from "@base-ui/react/menu";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useNavigate, useRouterState } from "@tanstack/react-router";
import {
  Bell,
  Boxes,
  ChartColumn,
  ChevronsUpDown,
  CircleUserRound,
  FlaskConical,
  HardDrive,
  KeyRound,
  LayoutList,
  ListOrdered,
  LogOut,
  type LucideIcon,
  Menu as MenuIcon,
  Monitor,
  Moon,
  Package,
  Plus,
  RadioTower,
  ScrollText,
  Search,
  Server,
  Settings,
  Sun,
  UsersRound,
  Webhook,
  WifiOff,
  X,
} from "lucide-react";
import { useEffect, useState } from "react";
import { api, unwrap } from "~/api/client";
import { useIsAway } from "~/api/connection";
import { healthQuery, meQuery } from "~/api/queries";
import { setTheme, type Theme, useTheme } from "~/lib/browser/theme";
import { openPalette, Palette } from "./palette";
import { toast } from "./toasts";

interface NavItem {
  to: string;
  label: string;
  icon: LucideIcon;
}

export const WORK: readonly NavItem[] = [
  { to: "/jobs", label: "Jobs", icon: LayoutList },
  { to: "/studies", label: "Studies", icon: FlaskConical },
  { to: "/models", label: "Models", icon: Package },
  { to: "/endpoints", label: "Endpoints", icon: RadioTower },
  { to: "/queue", label: "Queue", icon: ListOrdered },
  { to: "/cluster", label: "Cluster", icon: Server },
];
export const ADMIN: readonly NavItem[] = [
  { to: "/projects", label: "Projects", icon: Boxes },
  { to: "/usage", label: "Usage", icon: ChartColumn },
  { to: "/volumes", label: "Volumes", icon: HardDrive },
  { to: "/users", label: "Users", icon: UsersRound },
  { to: "/tokens", label: "Tokens", icon: KeyRound },
  { to: "/audit", label: "Audit log", icon: ScrollText },
  { to: "/notifications", label: "Notifications", icon: Bell },
  { to: "/webhooks", label: "Webhooks", icon: Webhook },
  { to: "/settings", label: "Settings", icon: Settings },
];

/** Navigation and layout around every page. */
export function Shell() {
  const [isOpen, setOpen] = useState(false);
  const path = useRouterState({ select: (state) => state.location.pathname });
  useEffect(() => setOpen(false), [path]);
  return (
    <div className="shell">
      <a href="#main" className="skip button">
        Skip to content
      </a>
      <div className="topbar">
        <button
          type="button"
          className="button quiet icon"
          aria-label="Menu"
          aria-expanded={isOpen}
          onClick={() => setOpen(!isOpen)}
        >
          {isOpen ? <X size={18} aria-hidden="true" /> : <MenuIcon size={18} aria-hidden="true" />}
        </button>
        <Brand />
        <span className="row">
          <button type="button" className="button quiet icon" aria-label="Search" onClick={openPalette}>
            <Search size={17} aria-hidden="true" />
          </button>
          <Link to="/submit" className="button quiet icon" aria-label="Submit a job">
            <Plus size={18} aria-hidden="true" />
          </Link>
        </span>
      </div>
      <aside className={`side${isOpen ? " open" : ""}`}>
        <div className="side-head">
          <Brand />
        </div>
        <button type="button" className="side-search" onClick={openPalette}>
          <Search size={14} aria-hidden="true" />
          <span className="grow">Search or go to…</span>
          <span className="kbd">/</span>
        </button>
        <Link to="/submit" className="button primary">
          <Plus size={15} aria-hidden="true" /> Submit a job
        </Link>
        <nav aria-label="Main" className="grow">
          <NavList items={WORK} />
          <div className="side-label">Platform</div>
          <NavList items={ADMIN} />
        </nav>
        <PlatformHealth />
        <Account />
      </aside>
      <div className="page">
        <UnreachableBanner />
        <main id="main" tabIndex={-1}>
          <Outlet />
        </main>
      </div>
      <Palette />
    </div>
  );
}

function Brand() {
  return (
    <Link to="/jobs" className="brand">
      <img src="/icon.svg" alt="" width={22} height={22} /> Trainmaster
    </Link>
  );
}

function NavList({ items }: { items: readonly NavItem[] }) {
  return (
    <ul>
      {items.map(({ to, label, icon: Icon }) => (
        <li key={to}>
          <Link to={to} className="place" activeProps={{ className: "active", "aria-current": "page" }}>
            <Icon size={16} aria-hidden="true" /> {label}
          </Link>
        </li>
      ))}
    </ul>
  );
}

function PlatformHealth() {
  const { data } = useQuery(healthQuery);
  const isAway = useIsAway();
  const ill = Object.entries(data?.parts ?? {}).filter(([, status]) => status !== "ok");
  const isWell = data?.status === "ok" && !isAway;
  const label = isAway ? "API unreachable" : data === undefined ? "…" : isWell ? "Healthy" : "Degraded";
  return (
    <Link to="/settings" className="side-health" title={ill.map(([part, status]) => `${part}: ${status}`).join("\n")}>
      <span className={`dot ${isWell ? "good" : data === undefined ? "" : "bad"}`} />
      <span className="grow">{label}</span>
      <span className="dimmer num" title={data?.revision ? `Commit ${data.revision}` : undefined}>
        {data?.version}
      </span>
    </Link>
  );
}

const THEMES: readonly [Theme, string, LucideIcon][] = [
  ["system", "System theme", Monitor],
  ["light", "Light", Sun],
  ["dark", "Dark", Moon],
];

function Account() {
  const { data: me } = useQuery(meQuery);
  const theme = useTheme();
  const client = useQueryClient();
  const navigate = useNavigate();
  const logOut = async () => {
    try {
      await unwrap(api.DELETE("/api/v1/session", {}));
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error), "bad");
      return;
    }
    client.clear();
    await navigate({ to: "/login" });
  };
  return (
    <Menu.Root>
      <Menu.Trigger className="account">
        <CircleUserRound size={18} aria-hidden="true" />
        <span className="grow cut">{me?.user ?? "…"}</span>
        {me?.is_admin && <span className="tag">admin</span>}
        <ChevronsUpDown size={14} aria-hidden="true" className="dimmer" />
      </Menu.Trigger>
      <Menu.Portal>
        <Menu.Positioner sideOffset={6} align="start" className="layer">
          <Menu.Popup className="menu">
            <Menu.RadioGroup value={theme} onValueChange={(value: Theme) => setTheme(value)}>
              {THEMES.map(([value, label, Icon]) => (
                <Menu.RadioItem key={value} value={value} className="menu-item" closeOnClick>
                  <Icon size={15} aria-hidden="true" /> <span className="grow">{label}</span>
                  <Menu.RadioItemIndicator>✓</Menu.RadioItemIndicator>
                </Menu.RadioItem>
              ))}
            </Menu.RadioGroup>
            <div className="menu-line" />
            <Menu.Item className="menu-item" onClick={logOut}>
              <LogOut size={15} aria-hidden="true" /> Log out
            </Menu.Item>
          </Menu.Popup>
        </Menu.Positioner>
      </Menu.Portal>
    </Menu.Root>
  );
}

function UnreachableBanner() {
  if (!useIsAway()) return null;
  return (
    <div className="away" role="status">
      <WifiOff size={15} aria-hidden="true" />
      The API does not respond. Running jobs continue; this page retries automatically.
    </div>
  );
}
