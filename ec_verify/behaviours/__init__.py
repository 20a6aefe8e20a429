# SPDX-License-Identifier: Apache-2.0
"""Behaviours of the TLA+ models: read, told, and made into schedules."""
