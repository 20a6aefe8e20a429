# SPDX-License-Identifier: Apache-2.0
"""Behaviours of the TLA+ models: each is read once, then drawn or made into a schedule.

* ``reading``: a step of a behaviour as an event: what happened, where, which messages.
* ``tier``, ``peer``, ``peer_read``, ``fleet``, ``quota``: what one model's events are, how
  they are drawn, and what a schedule makes of them (of the largest that stands in
  ``peer_read_schedule``). ``reads``: what schedules of READs have in common.
* ``models``: finds the model of a behaviour.
* ``story``: what a sequence diagram tells; ``picture`` writes one, event by event.
* ``schedule``: a schedule under construction.
"""
