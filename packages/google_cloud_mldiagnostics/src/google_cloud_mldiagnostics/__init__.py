"""Runs, configs, metrics and profiles of training jobs on XLA devices."""
