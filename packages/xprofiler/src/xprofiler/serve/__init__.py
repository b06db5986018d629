"""XProf on this machine: its own server on loopback, and a summary page of ours that needs no internet."""
