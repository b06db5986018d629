output "counter_metric_type" {
  description = "Type of the counter of stack traces, for charts and alerts."
  value       = module.stack_traces.counter_metric_type
}

output "monitoring_dashboard" {
  description = "Name of the monitoring dashboard, in Cloud Monitoring's API."
  value       = module.stack_traces.monitoring_dashboard
}

output "logging_dashboard" {
  description = "Name of the dashboard of stack traces, in Cloud Monitoring's API."
  value       = module.stack_traces.logging_dashboard
}

output "log_bucket" {
  description = "Name of the log bucket; null if none was requested."
  value       = module.stack_traces.log_bucket
}

output "log_sink" {
  description = "Name of the sink into the log bucket; null if none was requested."
  value       = module.stack_traces.log_sink
}
