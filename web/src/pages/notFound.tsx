import { Link, useRouterState } from "@tanstack/react-router";
import { Compass } from "lucide-react";
import { Empty } from "~/components/parts";
import { suggestLinks } from "~/components/shell/titles";

/** An address that is none: where what was meant may be. */
export function NotFound() {
  const path = useRouterState({ select: (state) => state.location.pathname });
  const { project, links: ways } = suggestLinks(path);
  return (
    <Empty icon={Compass} title="There is no such page">
      <p>
        {project === undefined
          ? "The address may be mistyped. The lists show all that you may see:"
          : `What is in project ${project} stands in the lists, which can show one project alone:`}
      </p>
      <div className="row wrapping ways">
        {ways.map(({ to, search, label }) => (
          <Link key={to} to={to} {...(search && { search })} className="button">
            {label}
          </Link>
        ))}
      </div>
    </Empty>
  );
}
