# SPDX-License-Identifier: Apache-2.0
"""The one clock of all processes of a host, which goes on while the machine sleeps."""

from __future__ import annotations

import time


def boottime() -> float:
    """Seconds since the machine was started, sleep and pauses included (EC-7.1).

    ``CLOCK_MONOTONIC`` stands still while a machine is suspended, and in many
    hypervisors while a virtual one is: leases would last longer than they do at the
    peer.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
