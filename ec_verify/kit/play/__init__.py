# SPDX-License-Identifier: Apache-2.0
"""Carries schedules out: one function for each kind of step."""
