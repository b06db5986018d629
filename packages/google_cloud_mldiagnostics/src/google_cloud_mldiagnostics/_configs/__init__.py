"""What a run is computed with: what its user says, and what is found out."""
