# SPDX-License-Identifier: Apache-2.0
"""The two halves that the host calls, and what they tell each other.

* ``scheduler``: decides. ``worker``: copies and reports.
* ``messages``: what they tell each other each step.
* ``facts``: what is known of the model.
"""
