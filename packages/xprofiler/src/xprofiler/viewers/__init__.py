"""Viewers, the VMs and pods that host XProf: search, creation, connections and deletion."""
