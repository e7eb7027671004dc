import { Link, useRouterState } from "@tanstack/react-router";
import { Compass } from "lucide-react";
import { Empty } from "~/components/parts";
import { suggestLinks } from "~/components/shell/titles";

/** The page for an unknown address, with suggestions. */
export function NotFound() {
  const path = useRouterState({ select: (state) => state.location.pathname });
  const { project, links: links } = suggestLinks(path);
  return (
    <Empty icon={Compass} title="Page not found">
      <p>
        {project === undefined ? "The address may be mistyped. Try one of the lists:" : `Lists of project ${project}:`}
      </p>
      <div className="row wrapping suggestions">
        {links.map(({ to, search, label }) => (
          <Link key={to} to={to} {...(search && { search })} className="button">
            {label}
          </Link>
        ))}
      </div>
    </Empty>
  );
}
