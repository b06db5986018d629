"""Google Cloud with gcloud's configuration: settings, login, clients of the APIs, and their errors."""
