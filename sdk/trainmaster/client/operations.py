"""All methods that the two clients and the two job handles share, each bound once."""

from __future__ import annotations

from typing import cast

from trainmaster.client.binding import IterMethod, JobIterMethod, JobMethod, Method
from trainmaster.client.calls import (
    admin,
    automl,
    checkpoints,
    jobs,
    metrics,
    models,
    output,
    planner,
    serving,
    studies,
    vertex,
)
from trainmaster.client.calls import planner as outlooks
from trainmaster.client.flows import pages, streams, transfer
from trainmaster.client.flows.models import download_version, get_batch_outcome, wait_for_version
from trainmaster.client.flows.streams import StateNotice
from trainmaster.client.flows.studies import create_study_with_code, wait_for_automl, wait_for_study
from trainmaster.wire.admin import (
    MemberView,
    NodeView,
    ProjectView,
    SecretView,
    TokenView,
    UserView,
    VolumeView,
)
from trainmaster.wire.checkpoints import TensorStatistics, TensorView
from trainmaster.wire.jobs import (
    AttemptView,
    CheckpointView,
    EventView,
    FileEntry,
    JobView,
    LogLine,
    LogSource,
    ReplicaView,
)
from trainmaster.wire.metrics import ChartSeries, MetricObjectView, MetricView
from trainmaster.wire.models import ModelChange, ModelFile, ModelView, VersionView
from trainmaster.wire.queue import RunningJobView, WaitingJobView
from trainmaster.wire.quotas import QuotaView
from trainmaster.wire.reservations import ReservationView
from trainmaster.wire.serving import EndpointChange, EndpointView
from trainmaster.wire.studies import StudyView, TrialView


class Operations:
    """The API, method by method. A ``job`` is given by its id or, for the newest visible one, its name."""

    # the server
    get_health = Method(admin.get_health)
    get_me = Method(admin.get_me)
    exchange_login_code = Method(admin.exchange_login_code)
    create_login_code = Method(admin.create_login_code)
    get_spec_schema = Method(admin.get_spec_schema)

    # jobs
    submit_job = Method(jobs.submit_job)
    check_spec = Method(jobs.check_spec)
    get_job = Method(jobs.get_job)
    list_jobs = IterMethod(pages.list_jobs, JobView)
    list_jobs_page = Method(jobs.list_jobs_page)
    cancel_job = Method(jobs.cancel_job)
    pause_job = Method(jobs.pause_job)
    resume_job = Method(jobs.resume_job)
    clone_job = Method(jobs.clone_job)
    delete_job = Method(jobs.delete_job)
    wait_for_job = Method(streams.wait_for_job)
    list_attempts = IterMethod(pages.list_attempts, AttemptView)
    list_attempts_page = Method(jobs.list_attempts_page)
    get_attempt = Method(jobs.get_attempt)
    list_replicas = IterMethod(pages.list_replicas, ReplicaView)
    list_replicas_page = Method(jobs.list_replicas_page)
    get_replica = Method(jobs.get_replica)

    # studies
    create_study = Method(create_study_with_code)
    check_study = Method(studies.check_study)
    get_study = Method(studies.get_study)
    get_study_best = Method(studies.get_study_best)
    list_studies = IterMethod(pages.list_studies, StudyView)
    list_studies_page = Method(studies.list_studies_page)
    list_trials = IterMethod(pages.list_trials, TrialView)
    list_trials_page = Method(studies.list_trials_page)
    get_trial_columns = Method(studies.get_trial_columns)
    get_study_curves = Method(studies.get_study_curves)
    get_study_importance = Method(studies.get_study_importance)
    get_study_prediction = Method(studies.get_study_prediction)
    clone_study = Method(studies.clone_study)
    check_study_clone = Method(studies.check_clone)
    stop_study = Method(studies.stop_study)
    pause_study = Method(studies.pause_study)
    resume_study = Method(studies.resume_study)
    extend_study = Method(studies.extend_study)
    delete_study = Method(studies.delete_study)
    suggest_trials = Method(studies.suggest_trials)
    heartbeat_trial = Method(studies.heartbeat_trial)
    complete_trial = Method(studies.complete_trial)
    wait_for_study = Method(wait_for_study)

    # AutoML
    create_automl = Method(automl.create_automl)
    get_automl = Method(automl.get_automl)
    wait_for_automl = Method(wait_for_automl)

    # endpoints
    create_endpoint = Method(serving.create_endpoint)
    list_endpoints = IterMethod(pages.list_endpoints, EndpointView)
    list_endpoints_page = Method(serving.list_endpoints_page)
    get_endpoint = Method(serving.get_endpoint)
    list_endpoint_changes = IterMethod(pages.list_endpoint_changes, EndpointChange)
    list_endpoint_changes_page = Method(serving.list_endpoint_changes_page)
    delete_endpoint = Method(serving.delete_endpoint)
    deploy_model = Method(serving.deploy_model)
    scale_deployment = Method(serving.scale_deployment)
    rollback_deployment = Method(serving.rollback_deployment)
    undeploy_model = Method(serving.undeploy_model)
    set_endpoint_traffic = Method(serving.set_endpoint_traffic)
    predict = Method(serving.predict)
    predict_with_metadata = Method(serving.predict_with_metadata)
    raw_predict = Method(serving.raw_predict)
    batch_predict = Method(serving.batch_predict)
    get_batch_outcome = Method(get_batch_outcome)

    # models
    create_model = Method(models.create_model)
    list_models = IterMethod(pages.list_models, ModelView)
    list_models_page = Method(models.list_models_page)
    find_models = IterMethod(pages.find_models, ModelView)
    find_models_page = Method(models.find_models_page)
    get_model = Method(models.get_model)
    change_model = Method(models.change_model)
    delete_model = Method(models.delete_model)
    list_model_changes = IterMethod(pages.list_model_changes, ModelChange)
    list_model_changes_page = Method(models.list_model_changes_page)
    set_model_alias = Method(models.set_model_alias)
    remove_model_alias = Method(models.remove_model_alias)
    register_version = Method(models.register_version)
    wait_for_version = Method(wait_for_version)
    list_versions = IterMethod(pages.list_versions, VersionView)
    list_versions_page = Method(models.list_versions_page)
    get_version = Method(models.get_version)
    change_version = Method(models.change_version)
    set_version_stage = Method(models.set_version_stage)
    delete_version = Method(models.delete_version)
    list_version_files = IterMethod(pages.list_version_files, ModelFile)
    list_version_files_page = Method(models.list_version_files_page)
    download_version = Method(download_version)

    # history
    list_job_events = IterMethod(pages.list_job_events, EventView)
    list_job_events_page = Method(jobs.list_job_events_page)
    follow_events = IterMethod(streams.follow_events, EventView)
    list_events = IterMethod(pages.list_events, EventView)
    list_events_page = Method(jobs.list_events_page)

    # output
    list_log_sources = IterMethod(pages.list_log_sources, LogSource)
    list_log_sources_page = Method(output.list_log_sources_page)
    read_log = Method(output.read_log)
    stream_logs = IterMethod(streams.stream_logs, LogLine)
    watch_job = IterMethod(streams.watch_job, cast("type[LogLine | StateNotice]", object))
    list_files = IterMethod(pages.list_files, FileEntry)
    list_files_page = Method(output.list_files_page)
    read_file = Method(transfer.read_file)
    download_file = Method(transfer.download_file)
    open_tensorboard = Method(output.open_tensorboard)

    # metrics
    list_metrics = IterMethod(pages.list_metrics, MetricView)
    list_metrics_page = Method(metrics.list_metrics_page)
    list_metric_names_page = Method(metrics.list_metric_names_page)
    chart_metrics = Method(metrics.chart_metrics)
    compare_metrics = Method(metrics.compare_metrics)
    stream_metrics = IterMethod(streams.stream_metrics, ChartSeries)
    list_metric_objects = IterMethod(pages.list_metric_objects, MetricObjectView)
    list_metric_objects_page = Method(metrics.list_metric_objects_page)
    read_metric_image = Method(metrics.read_metric_image)
    summarise_resources = Method(metrics.summarise_resources)

    # checkpoints
    list_checkpoints = IterMethod(pages.list_checkpoints, CheckpointView)
    list_checkpoints_page = Method(checkpoints.list_checkpoints_page)
    list_tensors = IterMethod(pages.list_tensors, TensorView)
    list_tensors_page = Method(checkpoints.list_tensors_page)
    list_tensor_statistics = IterMethod(pages.list_tensor_statistics, TensorStatistics)
    list_tensor_statistics_page = Method(checkpoints.list_tensor_statistics_page)
    diff_checkpoints_page = Method(checkpoints.diff_checkpoints_page)
    delete_checkpoint = Method(checkpoints.delete_checkpoint)
    keep_checkpoint = Method(checkpoints.keep_checkpoint)
    release_checkpoint = Method(checkpoints.release_checkpoint)
    get_retention = Method(checkpoints.get_retention)
    set_retention = Method(checkpoints.set_retention)
    clear_retention = Method(checkpoints.clear_retention)

    # code
    upload_archive = Method(transfer.upload_archive)
    start_archive = Method(output.start_archive)
    append_archive = Method(output.append_archive)
    get_archive = Method(output.get_archive)

    # projects and their secrets
    list_projects = IterMethod(pages.list_projects, ProjectView)
    list_projects_page = Method(admin.list_projects_page)
    get_project = Method(admin.get_project)
    create_project = Method(admin.create_project)
    update_project = Method(admin.update_project)
    delete_project = Method(admin.delete_project)
    list_members = IterMethod(pages.list_members, MemberView)
    list_members_page = Method(admin.list_members_page)
    set_member = Method(admin.set_member)
    remove_member = Method(admin.remove_member)
    list_secrets = IterMethod(pages.list_secrets, SecretView)
    list_secrets_page = Method(admin.list_secrets_page)
    set_secret = Method(admin.set_secret)
    delete_secret = Method(admin.delete_secret)

    # the planner
    forecast_spec = Method(outlooks.forecast_spec)
    forecast_job = Method(outlooks.forecast_job)
    explain_job = Method(outlooks.explain_job)
    begin_simulation = Method(outlooks.begin_simulation)
    get_simulation = Method(outlooks.get_simulation)
    list_queue = IterMethod(pages.list_queue, WaitingJobView)
    list_queue_page = Method(planner.list_queue_page)
    list_running = IterMethod(pages.list_running, RunningJobView)
    list_running_page = Method(planner.list_running_page)
    get_shares = Method(planner.get_shares)
    list_quotas = IterMethod(pages.list_quotas, QuotaView)
    list_quotas_page = Method(planner.list_quotas_page)
    get_quota = Method(planner.get_quota)
    update_quota = Method(planner.update_quota)
    get_policy = Method(planner.get_policy)
    update_policy = Method(planner.update_policy)
    get_vertex_table = Method(vertex.get_vertex_table)
    set_vertex_table = Method(vertex.set_vertex_table)
    try_vertex_machine = Method(vertex.try_vertex_machine)
    list_reservations = IterMethod(pages.list_reservations, ReservationView)
    list_reservations_page = Method(planner.list_reservations_page)
    create_reservation = Method(planner.create_reservation)
    delete_reservation = Method(planner.delete_reservation)

    # users and tokens
    list_users = IterMethod(pages.list_users, UserView)
    list_users_page = Method(admin.list_users_page)
    create_user = Method(admin.create_user)
    update_user = Method(admin.update_user)
    list_tokens = IterMethod(pages.list_tokens, TokenView)
    list_tokens_page = Method(admin.list_tokens_page)
    create_token = Method(admin.create_token)
    revoke_token = Method(admin.revoke_token)

    # nodes and volumes
    list_nodes = IterMethod(pages.list_nodes, NodeView)
    list_nodes_page = Method(admin.list_nodes_page)
    get_node = Method(admin.get_node)
    cordon_node = Method(admin.cordon_node)
    drain_node = Method(admin.drain_node)
    uncordon_node = Method(admin.uncordon_node)
    release_node = Method(admin.release_node)
    set_node_labels = Method(admin.set_node_labels)
    delete_node = Method(admin.delete_node)
    list_volumes = IterMethod(pages.list_volumes, VolumeView)
    list_volumes_page = Method(admin.list_volumes_page)
    get_volume = Method(admin.get_volume)
    create_volume = Method(admin.create_volume)
    delete_volume = Method(admin.delete_volume)


class JobOperations:
    """What a job handle can do; each method asks the server anew."""

    detail = JobMethod(jobs.get_job)
    wait = JobMethod(streams.wait_for_job)
    cancel = JobMethod(jobs.cancel_job)
    pause = JobMethod(jobs.pause_job)
    resume = JobMethod(jobs.resume_job)
    delete = JobMethod(jobs.delete_job)
    attempts = JobIterMethod(pages.list_attempts, AttemptView)
    replicas = JobIterMethod(pages.list_replicas, ReplicaView)
    events = JobIterMethod(pages.list_job_events, EventView)
    follow_events = JobIterMethod(streams.follow_events, EventView)
    logs = JobIterMethod(streams.stream_logs, LogLine)
    log_sources = JobIterMethod(pages.list_log_sources, LogSource)
    read_log = JobMethod(output.read_log)
    checkpoints = JobIterMethod(pages.list_checkpoints, CheckpointView)
    files = JobIterMethod(pages.list_files, FileEntry)
    read_file = JobMethod(transfer.read_file)
    download = JobMethod(transfer.download_file)
    chart = JobMethod(metrics.chart_metrics)
    follow_metrics = JobIterMethod(streams.stream_metrics, ChartSeries)
    resources = JobMethod(metrics.summarise_resources)
    metrics = JobIterMethod(pages.list_metrics, MetricView)  # last: in this class the name is the method's from here on
