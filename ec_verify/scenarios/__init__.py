# SPDX-License-Identifier: Apache-2.0
"""Scenarios: behaviours of the models as schedules that implementations are driven by."""
