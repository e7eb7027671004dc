import { useQuery } from "@tanstack/react-query";
import { useRouterState } from "@tanstack/react-router";
import { useEffect } from "react";
import { jobQuery } from "~/api/queries";
import { studyQuery } from "~/api/studies";
import { titleOf } from "./titles";

/** Sets the document's title. Sends no requests itself: it observes the queries of the page. */
export function useTitle(): void {
  const path = useRouterState({ select: (state) => state.location.pathname });
  const leaf = useRouterState({ select: (state) => state.matches.at(-1) });
  const params: Readonly<Record<string, string | undefined>> = leaf?.params ?? {};
  const { data: job } = useQuery({ ...jobQuery(params["job"] ?? ""), enabled: false });
  const { data: study } = useQuery({ ...studyQuery(params["study"] ?? ""), enabled: false });
  const title = titleOf(path, params["_splat"] === undefined, job ?? study);
  useEffect(() => {
    document.title = title;
  }, [title]);
}
