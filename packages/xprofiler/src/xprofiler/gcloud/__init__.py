"""Google Cloud with gcloud's configuration: settings, login, APIs, and programs such as gcloud and kubectl."""
