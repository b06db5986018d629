"""Compute on loopback: VMs are made, found, labelled and deleted as at Google."""

from ml_diagnostics_testing.compute.instances import metadata_of, vm_addresses
from ml_diagnostics_testing.compute.server import ComputeServer

__all__ = ["ComputeServer", "metadata_of", "vm_addresses"]
