# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in the demo itself. Imports no torch."""

from __future__ import annotations

from ec_protocol.errors import ECError


class DemoError(ECError):
    """The demo could not do what it set out to do."""
