"""XProf on this machine, served on loopback with our summary page, which needs no internet."""
