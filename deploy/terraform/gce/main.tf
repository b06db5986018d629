provider "google" {
  project = var.project_name
}

module "stack_traces" {
  source = "../modules/stack_traces"

  project_name      = var.project_name
  platform          = "gce"
  resource_type     = "tpu_worker"
  log_filter        = local.stack_trace_filter
  counter_labels    = local.counter_labels
  log_bucket        = var.stack_trace_bucket_config
  measures          = local.measures
  dashboard_filters = ["zone", "node_id"]
  outlier_count     = var.monitoring_dashboard_config.outlier_count
}

locals {
  # Entries of the library's own uploads, and of the agent of TPU VMs, which tails /tmp/debugging.
  stack_trace_filter = "resource.type=\"tpu_worker\" log_id(\"tpu.googleapis.com/runtime_monitor\") jsonPayload.verb=\"stacktraceanalyzer\""

  counter_labels = {
    zone      = "EXTRACT(resource.labels.zone)"
    node_id   = "EXTRACT(resource.labels.node_id)"
    worker_id = "EXTRACT(resource.labels.worker_id)"
  }
}
