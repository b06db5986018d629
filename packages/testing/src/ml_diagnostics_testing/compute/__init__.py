"""Compute Engine on loopback: create, find, label and delete VMs through the real API."""

from ml_diagnostics_testing.compute.instances import metadata_of, vm_addresses
from ml_diagnostics_testing.compute.server import ComputeServer

__all__ = ["ComputeServer", "metadata_of", "vm_addresses"]
