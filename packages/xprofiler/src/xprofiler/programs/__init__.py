"""Programs of this machine, gcloud and kubectl among them: how they are asked, run and ended."""
