"""Compute Engine on loopback: create, find, label and delete VMs through the real API."""

from .instances import metadata_of, vm_addresses
from .server import ComputeServer

__all__ = ["ComputeServer", "metadata_of", "vm_addresses"]
