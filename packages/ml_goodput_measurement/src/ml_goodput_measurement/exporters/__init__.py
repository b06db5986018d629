"""Gauges of many jobs for dashboards: served to Prometheus, or sent by OTLP. Each needs an extra."""
