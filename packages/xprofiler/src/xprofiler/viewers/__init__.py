"""What hosts XProf elsewhere, VMs and pods: how it is found, made, reached and deleted."""
