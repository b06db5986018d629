"""Google Cloud as gcloud is set to reach it: settings, login, clients of its APIs, and what their errors mean."""
