provider "google" {
  project = var.project_name
}

module "stack_traces" {
  source = "../modules/stack_traces"

  project_name      = var.project_name
  platform          = "gke"
  resource_type     = "k8s_container"
  log_filter        = local.stack_trace_filter
  counter_labels    = local.counter_labels
  log_bucket        = var.stack_trace_bucket_config
  measures          = local.measures
  dashboard_filters = ["cluster_name", "namespace_name", "pod_name"]
  outlier_count     = var.monitoring_dashboard_config.outlier_count
}

locals {
  # A sidecar that tails /tmp/debugging: what it prints is its container's log, an entry for each line.
  sidecar_filter = "resource.labels.container_name=~\"[a-z-0-9]*stacktrace[a-z-0-9]*\""

  # The library itself, with stack_trace_to_cloud=True: an entry for each trace, from the job's own container.
  upload_filter = "log_id(\"tpu.googleapis.com/runtime_monitor\") AND jsonPayload.verb=\"stacktraceanalyzer\""

  stack_trace_filter = "resource.type=\"k8s_container\" AND (${local.sidecar_filter} OR (${local.upload_filter}))"

  # An indexed Job's pods are named JOB-INDEX-SUFFIX, another Job's JOB-SUFFIX; both kinds of entry have the pod's name.
  counter_labels = {
    location = "EXTRACT(resource.labels.location)"
    cluster  = "EXTRACT(resource.labels.cluster_name)"
    pod      = "EXTRACT(resource.labels.pod_name)"
    job_name = "REGEXP_EXTRACT(resource.labels.pod_name, \"^(.+?)(?:-[0-9]+)?-[a-z0-9]{5}$\")"
  }
}
