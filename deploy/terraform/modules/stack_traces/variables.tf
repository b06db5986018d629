variable "project_name" {
  description = "Id of the Google Cloud project."
  type        = string
}

variable "platform" {
  description = "Where the jobs run, as names of resources say it: gce or gke."
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
  description = "Where stack traces are kept besides the bucket _Default; nowhere without a name."
  type = object({
    bucket_name    = optional(string)
    retention_days = optional(number)
  })
}

variable "measures" {
  description = "A row of the monitoring dashboard each; the query is PromQL and has a series for each worker."
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
  description = "How many workers the tiles of outliers show."
  type        = number
}
