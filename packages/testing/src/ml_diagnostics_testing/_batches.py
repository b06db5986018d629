"""Batch requests: several requests in one multipart body, each with its own response.

Format: https://cloud.google.com/storage/docs/batch
"""

import email
import re
from collections.abc import Callable
from http import HTTPStatus

from ml_diagnostics_testing.http_server import ApiError, Request, Response, error_response

_BOUNDARY = "batch_of_the_loopback_server"


def answer_batch(request: Request, handle: Callable[[Request], Response]) -> Response:
    """Handle each request of a batch, and return one response with all of theirs.

    Args:
        request: The batch.
        handle: Handles one request.

    Raises:
        ApiError: The request is not a valid batch.
    """
    content_type = request.headers.get("Content-Type", "")
    message = email.message_from_bytes(b"Content-Type: " + content_type.encode() + b"\n\n" + request.body)
    if not message.is_multipart():
        raise ApiError(400, f"expected a batch of type multipart/mixed, got {content_type!r}")
    parts = []
    for index, part in enumerate(message.get_payload()):
        answer = _answer(request, str(part.get_payload()), handle)
        head = {**answer.headers, "Content-Length": str(len(answer.body))}
        content_id = str(part.get("Content-ID", index)).strip().removeprefix("<").removesuffix(">")
        lines = [
            f"--{_BOUNDARY}",
            "Content-Type: application/http",
            f"Content-ID: <response-{content_id}>",
            "",
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            *(f"{name}: {value}" for name, value in head.items()),
            "",
            answer.body.decode(),
        ]
        parts.append("\r\n".join(lines) + "\r\n")
    body = "".join(parts) + f"--{_BOUNDARY}--\r\n"
    return Response(200, body.encode(), {"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"})


def _answer(request: Request, text: str, handle: Callable[[Request], Response]) -> Response:
    line, _, rest = text.lstrip().partition("\n")
    method, _, target = line.strip().removesuffix("HTTP/1.1").strip().partition(" ")
    headers = email.message_from_string(rest)
    if "Authorization" not in headers and "Authorization" in request.headers:
        headers["Authorization"] = request.headers["Authorization"]
    inner = Request(
        method=method,
        target=re.sub(r"^https?://[^/]+", "", target.strip()),
        headers=headers,
        body=str(headers.get_payload()).strip().encode(),
        time=request.time,
        record=request.record,
    )
    try:
        return handle(inner)
    except ApiError as error:
        return error_response(error)
