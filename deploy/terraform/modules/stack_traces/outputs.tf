output "counter_metric_type" {
  description = "Type of the counter of stack traces, for charts and alerts."
  value       = "logging.googleapis.com/user/${google_logging_metric.stack_trace_counter.name}"
}

output "monitoring_dashboard" {
  description = "Name of the monitoring dashboard, in Cloud Monitoring's API."
  value       = google_monitoring_dashboard.monitoring.id
}

output "logging_dashboard" {
  description = "Name of the dashboard of stack traces, in Cloud Monitoring's API."
  value       = google_monitoring_dashboard.logging.id
}

output "log_bucket" {
  description = "Name of the log bucket; null if none was requested."
  value       = one(google_logging_project_bucket_config.stack_traces[*].id)
}

output "log_sink" {
  description = "Name of the sink into the log bucket; null if none was requested."
  value       = one(google_logging_project_sink.stack_traces[*].name)
}
