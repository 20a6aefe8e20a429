# SPDX-License-Identifier: Apache-2.0
"""`ec-connector demo`: two real processes, real pictures, bit-for-bit comparison.

* ``images``: pictures from a folder, or a few that are drawn.
* ``encoder``: the fixed-seed vision encoder and the hash that names its output.
* ``report``: result rows as a table and as the documented JSON.

Importing this package imports none of them: torch and Pillow load only when the
demo runs.
"""
