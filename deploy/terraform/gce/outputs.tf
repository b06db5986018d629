output "counter_metric_type" {
  description = "Type of the counter of stack traces, for charts and alerts."
  value       = module.stack_traces.counter_metric_type
}

output "monitoring_dashboard" {
  description = "Name of the monitoring dashboard, as Cloud Monitoring's API has it."
  value       = module.stack_traces.monitoring_dashboard
}

output "logging_dashboard" {
  description = "Name of the dashboard of stack traces, as Cloud Monitoring's API has it."
  value       = module.stack_traces.logging_dashboard
}

output "log_bucket" {
  description = "Name of the log bucket; null where none was asked for."
  value       = module.stack_traces.log_bucket
}

output "log_sink" {
  description = "Name of the sink into the log bucket; null where none was asked for."
  value       = module.stack_traces.log_sink
}
