# SPDX-License-Identifier: Apache-2.0
"""Errors in the shapes that OpenAI's and Anthropic's clients read."""

from __future__ import annotations

import json
from typing import Any, Literal

from ec_protocol.errors import ECError

#: Whose clients read the answer; ``responses`` differs from ``openai`` in streams alone.
Style = Literal["openai", "responses", "anthropic"]

_KINDS = {
    401: "authentication_error",
    502: "upstream_error",
    503: "unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


class ProxyError(ECError):
    """A request that is answered with an error of the proxy's own.

    The message goes to a client: it names no instance and no address of theirs.

    Attributes:
        status: HTTP status.
        code: Short machine-readable reason.
        param: The field at fault, if one is.
        headers: Of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}

    def body(self, style: Style = "openai") -> dict[str, Any]:
        """The answer's JSON document."""
        ours = "invalid_request_error" if self.status < 500 else "internal_error"
        if style == "anthropic":
            kind = "invalid_request_error" if self.status < 500 else "api_error"
            kind = _ANTHROPIC_KINDS.get(self.status, kind)
            return {"type": "error", "error": {"type": kind, "message": f"{self.code}: {self}"}}
        return {
            "error": {
                "message": str(self),
                "type": _KINDS.get(self.status, ours),
                "param": self.param,
                "code": self.code,
            }
        }

    def event(self, style: Style = "openai") -> bytes:
        """The same as the last events of a stream that has begun already."""
        if style == "openai":
            return b"data: " + json.dumps(self.body()).encode() + b"\n\ndata: [DONE]\n\n"
        document = self.body(style)
        if style == "responses":
            document = {
                "type": "error",
                "code": self.code,
                "message": str(self),
                "param": self.param,
                "sequence_number": 0,
            }
        return b"event: error\ndata: " + json.dumps(document).encode() + b"\n\n"


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
