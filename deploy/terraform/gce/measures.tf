# The rows of the monitoring dashboard, in PromQL.
# Metrics: https://cloud.google.com/monitoring/api/metrics_gcp_p_z#gcp-tpu
# Names in PromQL: https://cloud.google.com/monitoring/promql/promql-mapping
# A quantile of nothing is NaN: `>= 0` omits workers that sent nothing.

locals {
  workers = "{monitored_resource='tpu_worker',node_id=~'${var.monitoring_dashboard_config.node_prefix}.*'}"

  # Custom metrics have data only if a program writes such a distribution, for any monitored resource.
  each_writer = "sum by (le, zone, node_id, worker_id, instance_id)"

  measures = [
    {
      title = "CPU utilization"
      unit  = "%"
      query = "avg by (zone, node_id, worker_id) (tpu_googleapis_com:cpu_utilization${local.workers})"
    },
    {
      title = "TensorCore idle duration"
      unit  = "s"
      query = "max by (zone, node_id, worker_id) (tpu_googleapis_com:tpu_tensorcore_idle_duration${local.workers})"
    },
    {
      title = "Memory usage"
      unit  = "By"
      query = "sum by (zone, node_id, worker_id) (tpu_googleapis_com:memory_usage${local.workers})"
    },
    {
      title = "Network, sent"
      unit  = "By/s"
      query = "sum by (zone, node_id, worker_id) (rate(tpu_googleapis_com:network_sent_bytes_count${local.workers}[5m]))"
    },
    {
      title = "Network, received"
      unit  = "By/s"
      query = "sum by (zone, node_id, worker_id) (rate(tpu_googleapis_com:network_received_bytes_count${local.workers}[5m]))"
    },
    {
      title = "DCN transfer latency [p50]"
      unit  = "us"
      query = "histogram_quantile(0.5, ${local.each_writer} (increase(custom_googleapis_com:dcn_transfer_latency_bucket[5m]))) >= 0"
    },
    {
      title = "DCN transfer latency [p99]"
      unit  = "us"
      query = "histogram_quantile(0.99, ${local.each_writer} (increase(custom_googleapis_com:dcn_transfer_latency_bucket[5m]))) >= 0"
    },
    {
      title = "Device to host transfer latency [p50]"
      unit  = "us"
      query = "histogram_quantile(0.5, ${local.each_writer} (increase(custom_googleapis_com:d2h_transfer_latency_bucket[5m]))) >= 0"
    },
    {
      title = "Device to host transfer latency [p99]"
      unit  = "us"
      query = "histogram_quantile(0.99, ${local.each_writer} (increase(custom_googleapis_com:d2h_transfer_latency_bucket[5m]))) >= 0"
    },
    {
      title = "Host to device transfer latency [p50]"
      unit  = "us"
      query = "histogram_quantile(0.5, ${local.each_writer} (increase(custom_googleapis_com:h2d_transfer_latency_bucket[5m]))) >= 0"
    },
    {
      title = "Host to device transfer latency [p99]"
      unit  = "us"
      query = "histogram_quantile(0.99, ${local.each_writer} (increase(custom_googleapis_com:h2d_transfer_latency_bucket[5m]))) >= 0"
    },
  ]
}
