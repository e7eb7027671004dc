import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { api, got } from "~/api/client";
import { endpointKeys } from "~/api/endpoints";
import { projectsQuery } from "~/api/queries";
import { FormDialog } from "~/components/forms/dialogs";
import { Field } from "~/components/parts";
import { TextInput } from "~/components/forms/textInput";

interface CreateProps {
  project: string | undefined;
  isOpen: boolean;
  close: () => void;
}

/** An endpoint without anything deployed to it yet; its page is opened. */
export function CreateEndpoint({ project, isOpen, close }: CreateProps) {
  const { data: projects } = useQuery(projectsQuery);
  const client = useQueryClient();
  const navigate = useNavigate();
  const submit = async (data: FormData) => {
    const own = String(data.get("project") ?? "default");
    const body = {
      name: String(data.get("name") ?? "").trim(),
      description: String(data.get("description") ?? "").trim(),
    };
    const made = await got(
      api.POST("/api/v1/projects/{project}/endpoints", { params: { path: { project: own } }, body }),
    );
    await client.invalidateQueries({ queryKey: endpointKeys.all });
    await navigate({ to: "/endpoints/$project/$endpoint", params: { project: made.project, endpoint: made.name } });
  };
  return (
    <FormDialog title="Create an endpoint" isOpen={isOpen} close={close} verb="Create" submit={submit}>
      {(wrong) => (
        <>
          <TextInput
            name="name"
            label="Name"
            placeholder="digits"
            hint="Lower case letters, digits and hyphens; the project's only one."
            wrong={wrong("name")}
            isRequired
          />
          <Field label="Project" wrong={wrong("project")}>
            {(props) => (
              <select {...props} name="project" className="input" defaultValue={project ?? "default"}>
                {(projects ?? []).map((each) => (
                  <option key={each.name}>{each.name}</option>
                ))}
              </select>
            )}
          </Field>
          <TextInput name="description" label="Description" placeholder="may be empty" wrong={wrong("description")} />
        </>
      )}
    </FormDialog>
  );
}
