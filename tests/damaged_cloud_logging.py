"""A Cloud Logging with pages that contain an entry that cannot be decoded."""

from __future__ import annotations

import json

from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.http_server import Request, Response, json_response


class DamagedCloudLogging(CloudLoggingServer):
    """Over REST the first entry of each page is followed by another, of which the payload is null."""

    def handle(self, request: Request) -> Response:
        response = super().handle(request)
        page = json.loads(response.body)
        if not page.get("entries"):
            return response
        page["entries"].insert(1, {**page["entries"][0], "insertId": "damaged", "jsonPayload": None})
        return json_response(page)
