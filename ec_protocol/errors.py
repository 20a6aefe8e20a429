# SPDX-License-Identifier: Apache-2.0
"""Errors of the protocol core.

``LocalProtocolError`` is our bug: the caller broke the tables or the API.
``RemoteProtocolError`` is the peer's: it sent something that the wire format or
the tables do not allow. Neither changes any state. ``ConfigError`` is the
operator's: a setting that cannot work.
"""

from __future__ import annotations


class ECError(Exception):
    """Base of every error this project raises on purpose."""


class ProtocolError(ECError):
    """A step that the protocol does not have. Never raised itself."""

    def __init__(self, message: str, *, clause: str = "") -> None:
        if type(self) is ProtocolError:
            raise TypeError(
                "raise LocalProtocolError or RemoteProtocolError, which say whose bug it is"
            )
        super().__init__(message)
        self.clause = clause


class LocalProtocolError(ProtocolError):
    """This process tried a step that the tables do not have (EC-1.2)."""


class RemoteProtocolError(ProtocolError):
    """A peer sent something that the protocol does not have (EC-1.2, EC-8.1)."""


class _TransitionError(ProtocolError):
    def __init__(self, lifecycle: str, state: str, event: str, message: str) -> None:
        super().__init__(message, clause="EC-1.2")
        self.lifecycle = lifecycle
        self.state = state
        self.event = event


class _Illegal(_TransitionError):
    def __init__(self, lifecycle: str, state: str, event: str) -> None:
        super().__init__(
            lifecycle,
            state,
            event,
            f"{lifecycle}: event {event!r} is not allowed in state {state!r}",
        )


class _Refused(_TransitionError):
    def __init__(self, lifecycle: str, state: str, event: str, guards: tuple[str, ...]) -> None:
        held = ", ".join(guards) or "none"
        super().__init__(
            lifecycle,
            state,
            event,
            f"{lifecycle}: no edge for event {event!r} in state {state!r} with guards held: {held}",
        )
        self.guards = guards


class IllegalEvent(_Illegal, LocalProtocolError):
    """The state has no edge for a local event."""


class GuardRefused(_Refused, LocalProtocolError):
    """The state has edges for a local event, but none whose guards hold."""


class RemoteIllegalEvent(_Illegal, RemoteProtocolError):
    """The state has no edge for an event that a peer caused."""


class RemoteGuardRefused(_Refused, RemoteProtocolError):
    """The state has edges for an event that a peer caused, but none whose guards hold."""


class ConfigError(ECError, ValueError):
    """A setting that cannot work: the message names the key, the value and the fix."""


class SpecError(ECError):
    """A file under ``spec/`` contradicts itself: a bug in the distribution."""


class TraceError(ECError):
    """A trace that cannot be read or written as asked."""
