import { CopyButton } from "~/components/parts";
import { Yaml } from "~/components/yaml";
import { studyYaml } from "~/lib/yaml/specYaml";
import { useStudy } from "./useStudy";

/** The study's spec as YAML. */
export function StudySpecTab() {
  const { study } = useStudy();
  if (study === undefined) return null;
  const text = studyYaml(study.spec);
  return (
    <div className="page-body">
      <section className="card">
        <header>
          <h2 className="grow">study.yaml</h2>
          <CopyButton text={text} />
        </header>
        <div className="body">
          <Yaml text={text} />
        </div>
      </section>
    </div>
  );
}
