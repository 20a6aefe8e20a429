# SPDX-License-Identifier: Apache-2.0
"""Errors in the shape that OpenAI clients read."""

from __future__ import annotations

import json
from typing import Any

from ec_protocol.errors import ECError

_KINDS = {
    400: "invalid_request_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    502: "upstream_error",
    503: "unavailable_error",
    504: "timeout_error",
}


class ProxyError(ECError):
    """A request that is answered with an error of the proxy's own.

    Attributes:
        status: HTTP status.
        code: Short machine-readable reason.
        param: The field at fault, if one is.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        """The answer's JSON document."""
        return {
            "error": {
                "message": str(self),
                "type": _KINDS.get(self.status, "internal_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    def event(self) -> bytes:
        """The same as the last events of a stream that has begun already."""
        return b"data: " + json.dumps(self.body()).encode() + b"\n\ndata: [DONE]\n\n"


class BackendFailed(ECError):
    """An instance could not be reached or broke off before it had answered.

    Nothing has been sent to the client yet, so another instance may be tried.
    """


class BackendTimeout(BackendFailed):
    """An instance took too long. Trying another one would only add to the load."""


class EncodingLost(ECError):
    """The decoder refused or failed a request whose media had been replaced.

    Nothing has been sent to the client yet, so the media can be put back.
    """
