# SPDX-License-Identifier: Apache-2.0
"""The schedule language of ``spec/SCENARIOS.md``."""
