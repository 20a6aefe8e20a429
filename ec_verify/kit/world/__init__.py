# SPDX-License-Identifier: Apache-2.0
"""Everything around the implementation under test, simulated and watched."""
