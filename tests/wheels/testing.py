"""Run in an empty environment with the wheel alone: the real client writes to the loopback cloud, and reads it."""

import google.cloud.logging
import ml_diagnostics_testing
from google.auth.credentials import AnonymousCredentials
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

assert "site-packages" in ml_diagnostics_testing.__file__

with CloudLoggingServer() as server:
    client = google.cloud.logging.Client(
        project="wheel",
        credentials=AnonymousCredentials(),
        _use_grpc=False,
        client_options={"api_endpoint": server.rest_url},
    )
    client.logger("log").log_struct({"number": 1})
    payloads = [entry.payload for entry in client.logger("log").list_entries()]
assert {"number": 1} in payloads, payloads  # the client adds an entry about itself
print("testing: serves Cloud Logging")
