# The resources of both platforms: a counter of stack traces, two dashboards and, if its name is set, a log bucket with
# its sink.

locals {
  has_log_bucket = try(length(var.log_bucket.bucket_name) > 0, false)

  # A stack trace counts once, without its further parts; the library's other entries do not count. Entries of other
  # writers, such as the lines of a sidecar, have neither field.
  counter_filter = "${var.log_filter} AND NOT jsonPayload.kind=(\"snapshot\" OR \"job_ended\" OR \"hang_suspected\") AND NOT jsonPayload.part>1"
}

resource "google_logging_project_bucket_config" "stack_traces" {
  count = local.has_log_bucket ? 1 : 0

  project        = var.project_name
  location       = "global"
  bucket_id      = var.log_bucket.bucket_name
  retention_days = coalesce(var.log_bucket.retention_days, 30)
  description    = "Stack traces of training jobs"
}

# No role is granted: a sink into a bucket of its own project has no writer identity and needs no permission, and a
# grant to that empty name fails. https://cloud.google.com/logging/docs/reference/v2/rest/v2/projects.sinks#LogSink
resource "google_logging_project_sink" "stack_traces" {
  count = local.has_log_bucket ? 1 : 0

  project                = var.project_name
  name                   = "${var.log_bucket.bucket_name}_sink"
  description            = "Stack traces of training jobs"
  destination            = "logging.googleapis.com/${google_logging_project_bucket_config.stack_traces[0].id}"
  filter                 = var.log_filter
  unique_writer_identity = true
}

resource "google_logging_metric" "stack_trace_counter" {
  project          = var.project_name
  name             = "stack_trace_counter_${var.platform}"
  description      = "Stack traces of training jobs"
  filter           = local.counter_filter
  label_extractors = var.counter_labels

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"
    unit        = "1"

    dynamic "labels" {
      for_each = var.counter_labels

      content {
        key        = labels.key
        value_type = "STRING"
      }
    }
  }
}

resource "google_monitoring_dashboard" "monitoring" {
  project = var.project_name

  dashboard_json = jsonencode({
    displayName = "TPU monitoring (${upper(var.platform)})"

    dashboardFilters = [
      for label in var.dashboard_filters : { filterType = "RESOURCE_LABEL", labelKey = label, templateVariable = "" }
    ]

    mosaicLayout = {
      columns = 48
      tiles = flatten([
        for row, measure in var.measures : jsondecode(templatefile("${path.module}/measure.json.tftpl", {
          top           = row * 12
          title         = measure.title
          unit          = measure.unit
          query         = measure.query
          outlier_count = var.outlier_count
        }))
      ])
    }
  })
}

resource "google_monitoring_dashboard" "logging" {
  project = var.project_name

  dashboard_json = templatefile("${path.module}/logging_dashboard.json.tftpl", {
    title          = "TPU stack traces (${upper(var.platform)})"
    resource_type  = var.resource_type
    counter        = google_logging_metric.stack_trace_counter.name
    counter_labels = join(", ", keys(var.counter_labels))
    log_filter     = var.log_filter
    project_name   = var.project_name
  })
}
