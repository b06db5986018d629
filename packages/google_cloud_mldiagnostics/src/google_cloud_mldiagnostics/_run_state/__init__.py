"""The state of a run as it is stored: attempts, processes, and the copy at a control plane."""
