import type { components } from "./schema.gen";

type Schemas = components["schemas"];

export type Job = Schemas["JobView"];
export type JobDetail = Schemas["JobDetail"];
export type JobState = Job["state"];
export type JobPage = Schemas["Page_JobView_"];
export type JobSpec = Schemas["JobSpec"];
export type Attempt = Schemas["AttemptView"];
export type Replica = Schemas["ReplicaView"];
export type Exit = Schemas["ExitView"];
export type Event = Schemas["EventView"];
export type Node = Schemas["NodeView"];
export type QuarantineJob = Schemas["QuarantineJob"];
export type Project = Schemas["ProjectView"];
export type Member = Schemas["MemberView"];
export type ServiceAccount = Schemas["ServiceAccountView"];
export type User = Schemas["UserView"];
export type Token = Schemas["TokenView"];
export type Volume = Schemas["VolumeView"];
export type UsageReport = Schemas["UsageReport"];
export type Price = Schemas["PriceView"];
export type Webhook = Schemas["WebhookView"];
export type Delivery = Schemas["DeliveryView"];
export type Channel = Schemas["ChannelView"];
export type Budget = Schemas["BudgetView"];
export type AuditEntry = Schemas["AuditEntryView"];
export type VolumeGrant = Schemas["VolumeGrantView"];
export type FileEntry = Schemas["FileEntry"];
export type Checkpoint = Schemas["CheckpointView"];
export type LogSource = Schemas["LogSource"];
export type Identity = Schemas["CallerIdentity"];
export type Holder = Schemas["HolderView"];
export type ChartSeries = Schemas["ChartSeries"];
export type Tensor = Schemas["TensorView"];
export type TensorFigures = Schemas["TensorStatistics"];
export type MetricSeries = Schemas["MetricView"];
export type CodeFile = Schemas["CodeFileDifference"];
export type MetricObject = Schemas["MetricObjectView"];
export type Forecast = Schemas["ForecastView"];
export type ForecastOption = Schemas["OptionView"];
export type Mistake = Schemas["ProblemError"];
export type Automl = Schemas["AutomlDetail"];

/** A line of the log stream, whose events the OpenAPI document can only name. */
export interface LogLine {
  attempt: number;
  role: string;
  index: number;
  /** The byte after the line in its file. */
  offset: number;
  at?: string | null;
  rank?: number | null;
  local_rank?: number | null;
  text: string;
}

export type WaitingJob = Schemas["WaitingJobView"];
export type RunningJob = Schemas["RunningJobView"];
export type Shares = Schemas["SharesView"];
export type Share = Schemas["ShareView"];
export type ExpectedStart = Schemas["ExpectedStartView"];
export type Quota = Schemas["QuotaView"];
export type RetentionPolicy = Schemas["RetentionPolicyView"];
export type RetentionPreviewLine = Schemas["RetentionPreviewLine"];
export type QuotaLine = Schemas["QuotaLineView"];
export type Policy = Schemas["PolicyView"];
export type Setting = Schemas["SettingView"];
export type Reservation = Schemas["ReservationView"];
export type Placement = Schemas["PlaceView"];
export type Explanation = Schemas["ExplanationView"];
export type Simulation = Schemas["SimulationStatusView"];
export type SimulationResult = Schemas["SimulationView"];
export type SimulationReport = Schemas["SimulationReportView"];

export type Study = Schemas["StudyView"];
export type StudyDetail = Schemas["StudyDetail"];
export type StudyState = Study["state"];
export type StudySpec = StudyDetail["spec"];
export type StudyPage = Schemas["Page_StudyView_"];
export type Trial = Schemas["TrialView"];
export type TrialColumns = Schemas["TrialColumns"];
export type TrialCurve = Schemas["TrialCurve"];
export type StudyImportance = Schemas["StudyImportance"];
export type StudyPrediction = Schemas["StudyPrediction"];
export type Parameter = StudySpec["parameters"][string];

export type Model = Schemas["ModelView"];
export type ModelVersion = Schemas["VersionView"];
export type ModelVersionDetail = Schemas["VersionDetail"];
export type ModelLineage = Schemas["ModelLineage"];
export type ModelChange = Schemas["ModelChangeView"];
export type Stage = NonNullable<ModelVersion["stage"]>;
export type Endpoint = Schemas["EndpointView"];
export type EndpointDetail = Schemas["EndpointDetail"];
export type Deployment = Schemas["DeploymentView"];
export type DeploymentDetail = Schemas["DeploymentDetail"];
export type Revision = Schemas["RevisionView"];
export type ServingReplica = Schemas["ServingReplicaView"];
export type DeployRequest = Schemas["DeployRequest"];
