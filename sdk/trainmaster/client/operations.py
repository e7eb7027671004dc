"""The methods shared by both clients and by both job handles, each bound once."""

from __future__ import annotations

from typing import Any, cast

from trainmaster.client.binding import ClientMethod, IterMethod, JobIterMethod, JobMethod
from trainmaster.client.calls import (
    admin,
    audit,
    checkpoints,
    jobs,
    metrics,
    models,
    notifications,
    output,
    planner,
    retention,
    service_accounts,
    serving,
    studies,
    usage,
    webhooks,
)
from trainmaster.client.flows import pages, streams, transfer
from trainmaster.client.flows.models import download_version, get_batch_outcome, wait_for_version
from trainmaster.client.flows.streams import StateNotice
from trainmaster.client.flows.studies import create_study_with_code, wait_for_automl, wait_for_study
from trainmaster.wire.admin import (
    IdentityView,
    LoginProviderView,
    MemberView,
    NodeView,
    ProjectView,
    SecretView,
    ServiceAccountView,
    TokenView,
    UserView,
    VolumeView,
)
from trainmaster.wire.audit import AuditEntryView
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
from trainmaster.wire.models import ModelChangeView, ModelView, VersionFileView, VersionView
from trainmaster.wire.notifications import ChannelView, NotificationView
from trainmaster.wire.scheduling import QuotaView, ReservationView, RunningJobView, WaitingJobView
from trainmaster.wire.serving import EndpointChange, EndpointView
from trainmaster.wire.studies import StudyView, TrialView
from trainmaster.wire.usage import BudgetView, PriceView
from trainmaster.wire.webhooks import DeliveryView, WebhookView


class Operations:
    """The methods of the API. ``job`` is a job's ID, or a name: then the newest visible job of this name."""

    # the server
    get_health = ClientMethod(admin.get_health)
    get_me = ClientMethod(admin.get_me)
    exchange_login_code = ClientMethod(admin.exchange_login_code)
    create_login_code = ClientMethod(admin.create_login_code)
    list_login_providers = IterMethod(pages.list_login_providers, LoginProviderView)
    list_login_providers_page = ClientMethod(admin.list_login_providers_page)
    start_device_login = ClientMethod(admin.start_device_login)
    poll_device_login = ClientMethod(admin.poll_device_login)
    get_spec_schema = ClientMethod(admin.get_spec_schema)

    # jobs
    submit_job = ClientMethod(jobs.submit_job)
    check_spec = ClientMethod(jobs.check_spec)
    get_job = ClientMethod(jobs.get_job)
    list_jobs = IterMethod(pages.list_jobs, JobView)
    list_jobs_page = ClientMethod(jobs.list_jobs_page)
    cancel_job = ClientMethod(jobs.cancel_job)
    pause_job = ClientMethod(jobs.pause_job)
    resume_job = ClientMethod(jobs.resume_job)
    clone_job = ClientMethod(jobs.clone_job)
    delete_job = ClientMethod(jobs.delete_job)
    pin_job = ClientMethod(retention.pin_job)
    unpin_job = ClientMethod(retention.unpin_job)
    wait_for_job = ClientMethod(streams.wait_for_job)
    list_attempts = IterMethod(pages.list_attempts, AttemptView)
    list_attempts_page = ClientMethod(jobs.list_attempts_page)
    get_attempt = ClientMethod(jobs.get_attempt)
    list_replicas = IterMethod(pages.list_replicas, ReplicaView)
    list_replicas_page = ClientMethod(jobs.list_replicas_page)
    get_replica = ClientMethod(jobs.get_replica)

    # studies
    create_study = ClientMethod(create_study_with_code)
    check_study = ClientMethod(studies.check_study)
    get_study = ClientMethod(studies.get_study)
    get_study_best = ClientMethod(studies.get_study_best)
    list_studies = IterMethod(pages.list_studies, StudyView)
    list_studies_page = ClientMethod(studies.list_studies_page)
    list_trials = IterMethod(pages.list_trials, TrialView)
    list_trials_page = ClientMethod(studies.list_trials_page)
    get_trial_columns = ClientMethod(studies.get_trial_columns)
    get_study_curves = ClientMethod(studies.get_study_curves)
    get_study_importance = ClientMethod(studies.get_study_importance)
    get_study_prediction = ClientMethod(studies.get_study_prediction)
    clone_study = ClientMethod(studies.clone_study)
    check_study_clone = ClientMethod(studies.check_clone)
    stop_study = ClientMethod(studies.stop_study)
    pause_study = ClientMethod(studies.pause_study)
    resume_study = ClientMethod(studies.resume_study)
    extend_study = ClientMethod(studies.extend_study)
    delete_study = ClientMethod(studies.delete_study)
    suggest_trials = ClientMethod(studies.suggest_trials)
    heartbeat_trial = ClientMethod(studies.heartbeat_trial)
    complete_trial = ClientMethod(studies.complete_trial)
    wait_for_study = ClientMethod(wait_for_study)

    # AutoML
    create_automl = ClientMethod(studies.create_automl)
    get_automl = ClientMethod(studies.get_automl)
    wait_for_automl = ClientMethod(wait_for_automl)

    # endpoints
    create_endpoint = ClientMethod(serving.create_endpoint)
    list_endpoints = IterMethod(pages.list_endpoints, EndpointView)
    list_endpoints_page = ClientMethod(serving.list_endpoints_page)
    get_endpoint = ClientMethod(serving.get_endpoint)
    list_endpoint_changes = IterMethod(pages.list_endpoint_changes, EndpointChange)
    list_endpoint_changes_page = ClientMethod(serving.list_endpoint_changes_page)
    delete_endpoint = ClientMethod(serving.delete_endpoint)
    deploy_model = ClientMethod(serving.deploy_model)
    scale_deployment = ClientMethod(serving.scale_deployment)
    rollback_deployment = ClientMethod(serving.rollback_deployment)
    undeploy_model = ClientMethod(serving.undeploy_model)
    set_endpoint_traffic = ClientMethod(serving.set_endpoint_traffic)
    predict = ClientMethod(serving.predict)
    predict_with_metadata = ClientMethod(serving.predict_with_metadata)
    raw_predict = ClientMethod(serving.raw_predict)
    batch_predict = ClientMethod(serving.batch_predict)
    get_batch_outcome = ClientMethod(get_batch_outcome)

    # models
    create_model = ClientMethod(models.create_model)
    list_models = IterMethod(pages.list_models, ModelView)
    list_models_page = ClientMethod(models.list_models_page)
    find_models = IterMethod(pages.find_models, ModelView)
    find_models_page = ClientMethod(models.find_models_page)
    get_model = ClientMethod(models.get_model)
    change_model = ClientMethod(models.change_model)
    delete_model = ClientMethod(models.delete_model)
    list_model_changes = IterMethod(pages.list_model_changes, ModelChangeView)
    list_model_changes_page = ClientMethod(models.list_model_changes_page)
    set_model_alias = ClientMethod(models.set_model_alias)
    remove_model_alias = ClientMethod(models.remove_model_alias)
    register_version = ClientMethod(models.register_version)
    wait_for_version = ClientMethod(wait_for_version)
    list_versions = IterMethod(pages.list_versions, VersionView)
    list_versions_page = ClientMethod(models.list_versions_page)
    get_version = ClientMethod(models.get_version)
    change_version = ClientMethod(models.change_version)
    set_version_stage = ClientMethod(models.set_version_stage)
    delete_version = ClientMethod(models.delete_version)
    list_version_files = IterMethod(pages.list_version_files, VersionFileView)
    list_version_files_page = ClientMethod(models.list_version_files_page)
    download_version = ClientMethod(download_version)

    # history
    list_job_events = IterMethod(pages.list_job_events, EventView)
    list_job_events_page = ClientMethod(jobs.list_job_events_page)
    follow_events = IterMethod(streams.follow_events, EventView)
    list_events = IterMethod(pages.list_events, EventView)
    list_events_page = ClientMethod(jobs.list_events_page)

    # output
    list_log_sources = IterMethod(pages.list_log_sources, LogSource)
    list_log_sources_page = ClientMethod(output.list_log_sources_page)
    read_log = ClientMethod(output.read_log)
    stream_logs = IterMethod(streams.stream_logs, LogLine)
    watch_job = IterMethod(streams.watch_job, cast("type[LogLine | StateNotice]", object))
    list_files = IterMethod(pages.list_files, FileEntry)
    list_files_page = ClientMethod(output.list_files_page)
    read_file = ClientMethod(transfer.read_file)
    download_file = ClientMethod(transfer.download_file)
    open_tensorboard = ClientMethod(output.open_tensorboard)

    # metrics
    list_metrics = IterMethod(pages.list_metrics, MetricView)
    list_metrics_page = ClientMethod(metrics.list_metrics_page)
    list_metric_names_page = ClientMethod(metrics.list_metric_names_page)
    suggest_metric_patterns = ClientMethod(metrics.suggest_metric_patterns)
    chart_metrics = ClientMethod(metrics.chart_metrics)
    compare_metrics = ClientMethod(metrics.compare_metrics)
    stream_metrics = IterMethod(streams.stream_metrics, ChartSeries)
    list_metric_objects = IterMethod(pages.list_metric_objects, MetricObjectView)
    list_metric_objects_page = ClientMethod(metrics.list_metric_objects_page)
    read_metric_image = ClientMethod(metrics.read_metric_image)
    summarise_resources = ClientMethod(metrics.summarise_resources)

    # checkpoints
    list_checkpoints = IterMethod(pages.list_checkpoints, CheckpointView)
    list_checkpoints_page = ClientMethod(checkpoints.list_checkpoints_page)
    list_tensors = IterMethod(pages.list_tensors, TensorView)
    list_tensors_page = ClientMethod(checkpoints.list_tensors_page)
    list_tensor_statistics = IterMethod(pages.list_tensor_statistics, TensorStatistics)
    list_tensor_statistics_page = ClientMethod(checkpoints.list_tensor_statistics_page)
    diff_checkpoints_page = ClientMethod(checkpoints.diff_checkpoints_page)
    delete_checkpoint = ClientMethod(checkpoints.delete_checkpoint)
    keep_checkpoint = ClientMethod(checkpoints.keep_checkpoint)
    release_checkpoint = ClientMethod(checkpoints.release_checkpoint)
    get_retention = ClientMethod(checkpoints.get_retention)
    set_retention = ClientMethod(checkpoints.set_retention)
    clear_retention = ClientMethod(checkpoints.clear_retention)

    # code
    upload_archive = ClientMethod(transfer.upload_archive)
    start_archive = ClientMethod(output.start_archive)
    append_archive = ClientMethod(output.append_archive)
    get_archive = ClientMethod(output.get_archive)

    # projects and their secrets
    list_projects = IterMethod(pages.list_projects, ProjectView)
    list_projects_page = ClientMethod(admin.list_projects_page)
    get_project = ClientMethod(admin.get_project)
    create_project = ClientMethod(admin.create_project)
    update_project = ClientMethod(admin.update_project)
    delete_project = ClientMethod(admin.delete_project)
    list_members = IterMethod(pages.list_members, MemberView)
    list_members_page = ClientMethod(admin.list_members_page)
    set_member = ClientMethod(admin.set_member)
    list_service_accounts = IterMethod(pages.list_service_accounts, ServiceAccountView)
    list_service_accounts_page = ClientMethod(service_accounts.list_service_accounts_page)
    create_service_account = ClientMethod(service_accounts.create_service_account)
    update_service_account = ClientMethod(service_accounts.update_service_account)
    delete_service_account = ClientMethod(service_accounts.delete_service_account)
    list_service_account_tokens = IterMethod(pages.list_service_account_tokens, TokenView)
    list_service_account_tokens_page = ClientMethod(service_accounts.list_service_account_tokens_page)
    create_service_account_token = ClientMethod(service_accounts.create_service_account_token)
    revoke_service_account_token = ClientMethod(service_accounts.revoke_service_account_token)
    remove_member = ClientMethod(admin.remove_member)
    list_secrets = IterMethod(pages.list_secrets, SecretView)
    list_secrets_page = ClientMethod(admin.list_secrets_page)
    set_secret = ClientMethod(admin.set_secret)
    delete_secret = ClientMethod(admin.delete_secret)

    # the planner
    forecast_spec = ClientMethod(planner.forecast_spec)
    forecast_job = ClientMethod(planner.forecast_job)
    explain_job = ClientMethod(planner.explain_job)
    begin_simulation = ClientMethod(planner.begin_simulation)
    get_simulation = ClientMethod(planner.get_simulation)
    list_queue = IterMethod(pages.list_queue, WaitingJobView)
    list_queue_page = ClientMethod(planner.list_queue_page)
    list_running = IterMethod(pages.list_running, RunningJobView)
    list_running_page = ClientMethod(planner.list_running_page)
    get_shares = ClientMethod(planner.get_shares)
    list_quotas = IterMethod(pages.list_quotas, QuotaView)
    list_quotas_page = ClientMethod(planner.list_quotas_page)
    get_quota = ClientMethod(planner.get_quota)
    update_quota = ClientMethod(planner.update_quota)
    get_retention_policy = ClientMethod(retention.get_retention_policy)
    set_retention_policy = ClientMethod(retention.set_retention_policy)
    preview_retention_policy = ClientMethod(retention.preview_retention_policy)
    get_policy = ClientMethod(planner.get_policy)
    update_policy = ClientMethod(planner.update_policy)
    get_vertex_table = ClientMethod(planner.get_vertex_table)
    set_vertex_table = ClientMethod(planner.set_vertex_table)
    try_vertex_machine = ClientMethod(planner.try_vertex_machine)
    list_reservations = IterMethod(pages.list_reservations, ReservationView)
    list_reservations_page = ClientMethod(planner.list_reservations_page)
    create_reservation = ClientMethod(planner.create_reservation)
    delete_reservation = ClientMethod(planner.delete_reservation)

    # usage and cost
    get_usage = ClientMethod(usage.get_usage)
    get_usage_csv = ClientMethod(usage.get_usage_csv)
    get_job_usage = ClientMethod(usage.get_job_usage)
    list_prices = IterMethod(pages.list_prices, PriceView)
    list_prices_page = ClientMethod(usage.list_prices_page)
    create_price = ClientMethod(usage.create_price)
    delete_price = ClientMethod(usage.delete_price)
    list_budgets = IterMethod(pages.list_budgets, BudgetView)
    list_budgets_page = ClientMethod(usage.list_budgets_page)
    get_budget = ClientMethod(usage.get_budget)
    set_budget = ClientMethod(usage.set_budget)
    delete_budget = ClientMethod(usage.delete_budget)

    # the audit log
    list_audit_entries = IterMethod(pages.list_audit_entries, AuditEntryView)
    list_audit_entries_page = ClientMethod(audit.list_audit_entries_page)
    export_audit_log = IterMethod(pages.export_audit_log, dict[str, Any])
    export_audit_log_page = ClientMethod(audit.export_audit_log_page)

    # webhooks
    list_webhooks = IterMethod(pages.list_webhooks, WebhookView)
    list_webhooks_page = ClientMethod(webhooks.list_webhooks_page)
    create_webhook = ClientMethod(webhooks.create_webhook)
    get_webhook = ClientMethod(webhooks.get_webhook)
    change_webhook = ClientMethod(webhooks.change_webhook)
    delete_webhook = ClientMethod(webhooks.delete_webhook)
    rotate_webhook_secret = ClientMethod(webhooks.rotate_webhook_secret)
    test_webhook = ClientMethod(webhooks.test_webhook)
    list_webhook_deliveries = IterMethod(pages.list_webhook_deliveries, DeliveryView)
    list_webhook_deliveries_page = ClientMethod(webhooks.list_webhook_deliveries_page)
    replay_webhook_delivery = ClientMethod(webhooks.replay_webhook_delivery)

    # notifications
    list_notification_channels = IterMethod(pages.list_notification_channels, ChannelView)
    list_notification_channels_page = ClientMethod(notifications.list_notification_channels_page)
    create_notification_channel = ClientMethod(notifications.create_notification_channel)
    change_notification_channel = ClientMethod(notifications.change_notification_channel)
    delete_notification_channel = ClientMethod(notifications.delete_notification_channel)
    test_notification_channel = ClientMethod(notifications.test_notification_channel)
    list_notifications = IterMethod(pages.list_notifications, NotificationView)
    list_notifications_page = ClientMethod(notifications.list_notifications_page)

    # users and tokens
    list_users = IterMethod(pages.list_users, UserView)
    list_users_page = ClientMethod(admin.list_users_page)
    create_user = ClientMethod(admin.create_user)
    update_user = ClientMethod(admin.update_user)
    list_identities = IterMethod(pages.list_identities, IdentityView)
    list_identities_page = ClientMethod(admin.list_identities_page)
    link_identity = ClientMethod(admin.link_identity)
    unlink_identity = ClientMethod(admin.unlink_identity)
    list_tokens = IterMethod(pages.list_tokens, TokenView)
    list_tokens_page = ClientMethod(admin.list_tokens_page)
    create_token = ClientMethod(admin.create_token)
    revoke_token = ClientMethod(admin.revoke_token)

    # nodes and volumes
    list_nodes = IterMethod(pages.list_nodes, NodeView)
    list_nodes_page = ClientMethod(admin.list_nodes_page)
    get_node = ClientMethod(admin.get_node)
    cordon_node = ClientMethod(admin.cordon_node)
    drain_node = ClientMethod(admin.drain_node)
    uncordon_node = ClientMethod(admin.uncordon_node)
    release_node = ClientMethod(admin.release_node)
    set_node_labels = ClientMethod(admin.set_node_labels)
    delete_node = ClientMethod(admin.delete_node)
    list_volumes = IterMethod(pages.list_volumes, VolumeView)
    list_volumes_page = ClientMethod(admin.list_volumes_page)
    get_volume = ClientMethod(admin.get_volume)
    create_volume = ClientMethod(admin.create_volume)
    delete_volume = ClientMethod(admin.delete_volume)
    set_volume_grant = ClientMethod(admin.set_volume_grant)
    delete_volume_grant = ClientMethod(admin.delete_volume_grant)


class JobOperations:
    """The methods of a job handle; each sends a request to the server."""

    detail = JobMethod(jobs.get_job)
    wait = JobMethod(streams.wait_for_job)
    cancel = JobMethod(jobs.cancel_job)
    pause = JobMethod(jobs.pause_job)
    resume = JobMethod(jobs.resume_job)
    delete = JobMethod(jobs.delete_job)
    pin = JobMethod(retention.pin_job)
    unpin = JobMethod(retention.unpin_job)
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
    usage = JobMethod(usage.get_job_usage)
    chart = JobMethod(metrics.chart_metrics)
    follow_metrics = JobIterMethod(streams.stream_metrics, ChartSeries)
    resources = JobMethod(metrics.summarise_resources)
    metrics = JobIterMethod(pages.list_metrics, MetricView)  # last: from here on the name refers to the method
