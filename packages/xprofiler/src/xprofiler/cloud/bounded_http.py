"""The HTTP of google-api-python-client, over the requests of common: responses are bounded in size and time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import httplib2
from google.auth.exceptions import GoogleAuthError
from ml_diagnostics_common.authorized_requests import LIST_BYTES, NoAnswerError, Session, Why, exchange

__all__ = ["BoundedHttp"]


class BoundedHttp:
    """What google-api-python-client needs of an `httplib2.Http`.

    Args:
        session: The connections, which several threads may use.
        timeout_seconds: How long a request may take in all.
    """

    def __init__(self, session: Session, timeout_seconds: float) -> None:
        self._session = session
        self._timeout_seconds = timeout_seconds

    def request(
        self,
        uri: str,
        method: str = "GET",
        body: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **_: Any,
    ) -> tuple[httplib2.Response, bytes]:
        """Make one request.

        Raises:
            TimeoutError: There was no whole response in time.
            ConnectionError: There was none, or one that is too large.
            google.auth.exceptions.GoogleAuthError: There is no access token.
        """
        # httplib2 and `exchange` would both ask for gzip.
        sent = {name: value for name, value in (headers or {}).items() if name.lower() != "accept-encoding"}
        try:
            answer = exchange(
                self._session,
                method,
                uri,
                headers=sent,
                timeout_seconds=self._timeout_seconds,
                body=body.encode() if isinstance(body, str) else body,
                most_bytes=LIST_BYTES,
            )
        except NoAnswerError as error:
            if isinstance(error.__cause__, GoogleAuthError):
                raise error.__cause__ from error
            raise (TimeoutError if error.why is Why.TIMEOUT else ConnectionError)(str(error)) from error
        response = {"status": str(answer.status)}
        if answer.retry_after_seconds is not None:
            response["retry-after"] = str(math.ceil(answer.retry_after_seconds))
        return httplib2.Response(response), answer.body

    def close(self) -> None:
        """Do nothing: the session is closed by its owner."""
