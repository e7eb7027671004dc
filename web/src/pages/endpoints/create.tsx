import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { api, unwrap } from "~/api/client";
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

/** Creates an endpoint without deployed models, and opens its page. */
export function CreateEndpoint({ project, isOpen, close }: CreateProps) {
  const { data: projects } = useQuery(projectsQuery);
  const client = useQueryClient();
  const navigate = useNavigate();
  const submit = async (data: FormData) => {
    const chosen = String(data.get("project") ?? "default");
    const body = {
      name: String(data.get("name") ?? "").trim(),
      description: String(data.get("description") ?? "").trim(),
    };
    const endpoint = await unwrap(
      api.POST("/api/v1/projects/{project}/endpoints", { params: { path: { project: chosen } }, body }),
    );
    await client.invalidateQueries({ queryKey: endpointKeys.all });
    await navigate({
      to: "/endpoints/$project/$endpoint",
      params: { project: endpoint.project, endpoint: endpoint.name },
    });
  };
  return (
    <FormDialog title="Create an endpoint" isOpen={isOpen} close={close} verb="Create" submit={submit}>
      {(errorOf) => (
        <>
          <TextInput
            name="name"
            label="Name"
            placeholder="digits"
            hint="Lowercase letters, digits and hyphens; unique in the project."
            error={errorOf("name")}
            isRequired
          />
          <Field label="Project" error={errorOf("project")}>
            {(props) => (
              <select {...props} name="project" className="input" defaultValue={project ?? "default"}>
                {(projects ?? []).map((each) => (
                  <option key={each.name}>{each.name}</option>
                ))}
              </select>
            )}
          </Field>
          <TextInput name="description" label="Description" placeholder="optional" error={errorOf("description")} />
        </>
      )}
    </FormDialog>
  );
}
