"""Programs of this machine, such as gcloud and kubectl: their command lines, execution and termination."""
