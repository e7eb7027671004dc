import { describe, expect, test } from "vitest";
import { titleOf, suggestLinks } from "./titles";

describe("titles", () => {
  test.each([
    ["/jobs", "Jobs · Trainmaster"],
    ["/jobs/job-1", "job-1 · Jobs · Trainmaster"],
    ["/studies/new", "New study · Studies · Trainmaster"],
    ["/models/vision/digits", "digits · Models · Trainmaster"],
    ["/models/vision/digits/versions/3", "digits · Version 3 · Models · Trainmaster"],
    ["/endpoints/vision/digits/try", "digits · Try · Endpoints · Trainmaster"],
    ["/projects/vision", "vision · Projects · Trainmaster"],
    ["/batch-predictions", "Batch predictions · Trainmaster"],
    ["/login", "Log in · Trainmaster"],
    ["/jobs/%E0%A4%A", "%E0%A4%A · Jobs · Trainmaster"],
  ])("%s", (path, title) => {
    expect(titleOf(path, true)).toBe(title);
  });

  test("contain name and state", () => {
    expect(titleOf("/studies/study-1/trials", true, { name: "slow", state: "running" })).toBe(
      "slow (running) · Trials · Studies · Trainmaster",
    );
  });

  test("name an unknown page", () => {
    expect(titleOf("/activity", false)).toBe("Page not found · Trainmaster");
  });
});

describe("an unknown address", () => {
  test("leads to the lists", () => {
    const { project, links: ways } = suggestLinks("/activity");
    expect(project).toBeUndefined();
    expect(ways[0]).toEqual({ to: "/jobs", label: "Jobs" });
  });

  test("leads to the lists of its project, the requested list first", () => {
    const { project, links: ways } = suggestLinks("/projects/my%20own/models");
    expect(project).toBe("my own");
    expect(ways[0]).toEqual({ to: "/models", search: { project: "my own" }, label: "Models" });
    expect(ways.filter((way) => way.label === "Models")).toHaveLength(1);
    expect(ways.at(-1)).toEqual({ to: "/projects/my%20own", label: "Project" });
  });

  test.each([
    ["/projects/vision/models/digits", "/models/vision/digits"],
    ["/projects/vision/jobs/job-1", "/jobs/job-1"],
    ["/projects/vision/queue/x", "/queue"],
  ])("%s leads to %s", (path, to) => {
    expect(suggestLinks(path).links[0]?.to).toBe(to);
  });
});
