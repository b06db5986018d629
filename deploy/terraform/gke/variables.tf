variable "project_name" {
  description = "Id of the Google Cloud project in which the jobs run."
  type        = string
}

variable "monitoring_dashboard_config" {
  description = <<-EOT
    The monitoring dashboard.
    outlier_count: The number of pods in the tiles of outliers.
  EOT
  type = object({
    outlier_count = optional(number, 10)
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.monitoring_dashboard_config.outlier_count >= 1
    error_message = "outlier_count of monitoring_dashboard_config is at least 1."
  }
}

variable "stack_trace_bucket_config" {
  description = <<-EOT
    A separate log bucket for stack traces, which are always in the bucket _Default, too.
    bucket_name: Id of the log bucket to create; by default none is created.
    retention_days: Retention of an entry, in days; 30 by default.
  EOT
  type = object({
    bucket_name    = optional(string)
    retention_days = optional(number)
  })
  default  = {}
  nullable = false

  validation {
    condition = (
      var.stack_trace_bucket_config.retention_days == null || try(length(var.stack_trace_bucket_config.bucket_name) > 0, false)
    )
    error_message = "bucket_name is not defined for stack_trace_bucket_config."
  }
}
