import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { Boxes, Plus } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys, meQuery, projectsQuery } from "~/api/queries";
import { DataTable } from "~/components/dataTable";
import { FormDialog } from "~/components/forms/dialogs";
import { Field, PageHead } from "~/components/parts";
import { Ago } from "~/components/time";
import { number } from "~/lib/format";

export function ProjectsPage() {
  const query = useQuery(projectsQuery);
  const { data: me } = useQuery(meQuery);
  const [isOpen, setOpen] = useState(false);
  const client = useQueryClient();
  const navigate = useNavigate();
  const create = async (data: FormData) => {
    const name = String(data.get("name"));
    await unwrap(
      api.POST("/api/v1/projects", {
        body: { name, description: String(data.get("description")), weight: Number(data.get("weight") || 1) },
      }),
    );
    await client.invalidateQueries({ queryKey: keys.projects });
    await navigate({ to: "/projects/$project", params: { project: name } });
  };
  return (
    <div className="page-body">
      <PageHead title="Projects" about="Every job belongs to a project. A member's role determines the permissions.">
        {me?.is_admin && (
          <button type="button" className="button primary" onClick={() => setOpen(true)}>
            <Plus size={15} aria-hidden="true" /> New project
          </button>
        )}
      </PageHead>
      <DataTable
        label="Projects"
        query={query}
        rowKey={(project) => project.name}
        empty={{
          icon: Boxes,
          title: "No projects",
          description: "Ask a platform admin to add you to one.",
        }}
        columns={[
          {
            head: "Name",
            cell: (project) => (
              <Link to="/projects/$project" params={{ project: project.name }} className="strong">
                {project.name}
              </Link>
            ),
          },
          { head: "Description", cell: (project) => <span className="dim wrap">{project.description}</span> },
          { head: "Your role", cell: (project) => project.my_role ?? <span className="dimmer">none</span> },
          { head: "Weight", isRight: true, cell: (project) => number(project.weight) },
          { head: "Created", cell: (project) => <Ago at={project.created_at} /> },
          {
            head: <span className="only-read">Jobs</span>,
            isRight: true,
            cell: (project) => (
              <Link to="/jobs" search={{ project: project.name }}>
                Jobs
              </Link>
            ),
          },
        ]}
      />
      <FormDialog title="New project" isOpen={isOpen} close={() => setOpen(false)} verb="Create" submit={create}>
        <Field label="Name" hint="Lowercase letters, digits and hyphens.">
          {(props) => <input {...props} className="input" name="name" required maxLength={63} autoComplete="off" />}
        </Field>
        <Field label="Description">
          {(props) => <textarea {...props} className="input" name="description" rows={2} maxLength={4000} />}
        </Field>
        <Field label="Weight" hint="Relative to other projects, for fair sharing.">
          {(props) => (
            <input
              {...props}
              className="input"
              name="weight"
              type="number"
              min={0.1}
              max={1000}
              step={0.1}
              defaultValue={1}
            />
          )}
        </Field>
      </FormDialog>
    </div>
  );
}
