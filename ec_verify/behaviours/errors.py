# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with scenarios."""

from ec_protocol.errors import ECError


class ScenarioError(ECError):
    """A scenario cannot be made, read or played; the message says which and why."""


class NotExpressible(ScenarioError):
    """A behaviour has a step that the schedule language does not have."""
