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
  # A sidecar that tails /tmp/debugging prints to its container's log, an entry for each line.
  sidecar_filter = "resource.labels.container_name=~\"[a-z-0-9]*stacktrace[a-z-0-9]*\""

  # The library itself, with stack_trace_to_cloud=True: an entry for each trace, whatever container it names.
  upload_filter = "log_id(\"tpu.googleapis.com/runtime_monitor\") AND jsonPayload.verb=\"stacktraceanalyzer\""

  stack_trace_filter = "resource.type=\"k8s_container\" AND (${local.sidecar_filter} OR (${local.upload_filter}))"

  # A pod of an indexed Job is named JOB-INDEX-SUFFIX and its host JOB-INDEX; a pod of another Job JOB-SUFFIX.
  # Kubernetes generates suffixes of letters and digits that spell no words.
  counter_labels = {
    location = "EXTRACT(resource.labels.location)"
    cluster  = "EXTRACT(resource.labels.cluster_name)"
    pod      = "EXTRACT(resource.labels.pod_name)"
    job_name = "REGEXP_EXTRACT(resource.labels.pod_name, \"^(.+?)(?:-[0-9]+)?(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?$\")"
  }
}
