variable "project_name" {
  description = "Id of the Google Cloud project in which the jobs run."
  type        = string
}

variable "monitoring_dashboard_config" {
  description = <<-EOT
    The monitoring dashboard.
    node_prefix: Only TPU nodes whose name begins so; all when empty.
    outlier_count: How many workers the tiles of outliers show.
  EOT
  type = object({
    node_prefix   = optional(string, "")
    outlier_count = optional(number, 10)
  })
  default  = {}
  nullable = false

  validation {
    condition     = can(regex("^[a-z0-9-]*$", var.monitoring_dashboard_config.node_prefix))
    error_message = "node_prefix of monitoring_dashboard_config has only lower-case letters, digits and hyphens."
  }

  validation {
    condition     = var.monitoring_dashboard_config.outlier_count >= 1
    error_message = "outlier_count of monitoring_dashboard_config is at least 1."
  }
}

variable "stack_trace_bucket_config" {
  description = <<-EOT
    A log bucket of its own for stack traces; they are in the bucket _Default in any case.
    bucket_name: Id of the log bucket that is made; none is when it is left out.
    retention_days: How long it keeps an entry, in days; 30 when it is left out.
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
