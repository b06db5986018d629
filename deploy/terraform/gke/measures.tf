# The rows of the monitoring dashboard, in PromQL.
# Metrics: https://cloud.google.com/monitoring/api/metrics_kubernetes
# Names in PromQL: https://cloud.google.com/monitoring/promql/promql-mapping
# A quantile of nothing is NaN: `>= 0` omits workers that sent nothing.

locals {
  containers = "{monitored_resource='k8s_container'}"
  pods       = "{monitored_resource='k8s_pod'}"
  each_pod   = "sum by (cluster_name, namespace_name, pod_name)"
  each_le    = "sum by (le, cluster_name, namespace_name, pod_name)"

  measures = [
    {
      title = "CPU cores used"
      unit  = "1"
      query = "${local.each_pod} (rate(kubernetes_io:container_cpu_core_usage_time${local.containers}[5m]))"
    },
    {
      title = "Memory used"
      unit  = "By"
      query = "${local.each_pod} (kubernetes_io:container_memory_used_bytes${local.containers})"
    },
    {
      title = "Accelerator duty cycle"
      unit  = "%"
      query = "avg by (cluster_name, namespace_name, pod_name) (kubernetes_io:container_accelerator_duty_cycle${local.containers})"
    },
    {
      title = "Accelerator memory used"
      unit  = "By"
      query = "${local.each_pod} (kubernetes_io:container_accelerator_memory_used${local.containers})"
    },
    {
      title = "Network, sent"
      unit  = "By/s"
      query = "${local.each_pod} (rate(kubernetes_io:pod_network_sent_bytes_count${local.pods}[5m]))"
    },
    {
      title = "Network, received"
      unit  = "By/s"
      query = "${local.each_pod} (rate(kubernetes_io:pod_network_received_bytes_count${local.pods}[5m]))"
    },
    {
      title = "DCN transfer latency [p50]"
      unit  = "us"
      query = "histogram_quantile(0.5, ${local.each_le} (increase(kubernetes_io:container_multislice_network_dcn_transfer_latencies_bucket${local.containers}[5m]))) >= 0"
    },
    {
      title = "DCN transfer latency [p99]"
      unit  = "us"
      query = "histogram_quantile(0.99, ${local.each_le} (increase(kubernetes_io:container_multislice_network_dcn_transfer_latencies_bucket${local.containers}[5m]))) >= 0"
    },
    {
      title = "Host to device transfer latency [p50]"
      unit  = "us"
      query = "histogram_quantile(0.5, ${local.each_le} (increase(kubernetes_io:container_multislice_accelerator_host_to_device_transfer_latencies_bucket${local.containers}[5m]))) >= 0"
    },
    {
      title = "Host to device transfer latency [p99]"
      unit  = "us"
      query = "histogram_quantile(0.99, ${local.each_le} (increase(kubernetes_io:container_multislice_accelerator_host_to_device_transfer_latencies_bucket${local.containers}[5m]))) >= 0"
    },
    {
      title = "Device to host transfer latency [p50]"
      unit  = "us"
      query = "histogram_quantile(0.5, ${local.each_le} (increase(kubernetes_io:container_multislice_accelerator_device_to_host_transfer_latencies_bucket${local.containers}[5m]))) >= 0"
    },
    {
      title = "Device to host transfer latency [p99]"
      unit  = "us"
      query = "histogram_quantile(0.99, ${local.each_le} (increase(kubernetes_io:container_multislice_accelerator_device_to_host_transfer_latencies_bucket${local.containers}[5m]))) >= 0"
    },
    {
      title = "Collective latency [p50]"
      unit  = "us"
      query = "histogram_quantile(0.5, ${local.each_le} (increase(kubernetes_io:container_multislice_network_collective_end_to_end_latencies_bucket${local.containers}[5m]))) >= 0"
    },
    {
      title = "Collective latency [p99]"
      unit  = "us"
      query = "histogram_quantile(0.99, ${local.each_le} (increase(kubernetes_io:container_multislice_network_collective_end_to_end_latencies_bucket${local.containers}[5m]))) >= 0"
    },
  ]
}
