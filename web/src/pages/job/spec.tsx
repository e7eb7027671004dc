import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { CopyPlus } from "lucide-react";
import { jobQuery } from "~/api/queries";
import { CopyButton } from "~/components/parts";
import { Yaml } from "~/components/yaml";
import { specYaml } from "~/lib/yaml/specYaml";

const route = getRouteApi("/shell/jobs/$job");

export function Spec() {
  const { job: id } = route.useParams();
  const { data: job } = useQuery(jobQuery(id));
  if (job === undefined) return null;
  const text = specYaml(job.spec);
  return (
    <div className="page-body">
      <section className="card">
        <header>
          <h2 className="grow">
            Spec <span className="dimmer">without defaults, immutable</span>
          </h2>
          <CopyButton text={text} />
          <Link to="/submit" search={{ from: id }} className="button small">
            <CopyPlus size={14} aria-hidden="true" /> Clone and edit
          </Link>
        </header>
        <div className="body">
          <Yaml text={text} />
        </div>
      </section>
    </div>
  );
}
