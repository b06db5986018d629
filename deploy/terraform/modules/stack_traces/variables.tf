variable "project_name" {
  description = "Id of the Google Cloud project."
  type        = string
}

variable "platform" {
  description = "The platform of the jobs, for the names of resources: gce or gke."
  type        = string
}

variable "resource_type" {
  description = "Type of the monitored resource of these log entries."
  type        = string
}

variable "log_filter" {
  description = "The log entries that are stack traces, in the Logging query language."
  type        = string
}

variable "counter_labels" {
  description = "By the name of a label of the counter, the expression that takes its value from a log entry."
  type        = map(string)
}

variable "log_bucket" {
  description = "The log bucket for stack traces besides the bucket _Default; none without a name."
  type = object({
    bucket_name    = optional(string)
    retention_days = optional(number)
  })
}

variable "measures" {
  description = "The rows of the monitoring dashboard; each query is PromQL and has a series for each worker."
  type = list(object({
    title = string
    unit  = string
    query = string
  }))
}

variable "dashboard_filters" {
  description = "Labels of the monitored resource by which a reader can narrow the monitoring dashboard."
  type        = list(string)
}

variable "outlier_count" {
  description = "The number of workers in the tiles of outliers."
  type        = number
}
