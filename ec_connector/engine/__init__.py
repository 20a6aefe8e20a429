# SPDX-License-Identifier: Apache-2.0
"""The two halves that the host calls, and what they tell each other.

* ``scheduler``: decides. ``worker``: copies and reports.
* ``messages``: what they tell each other each step.
* ``items``, ``params``: what a request is made of, and what it says about encodings
  elsewhere, checked.
* ``stats``: latencies that the pump measures.
"""
