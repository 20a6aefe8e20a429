# SPDX-License-Identifier: Apache-2.0
"""The local tier: encodings in one region, and who holds them.

* ``extents``: runs of blocks, and who gets which.
* ``entry``: one encoding in one region.
* ``encodings``: ``EncodingTier``, all entries of a region.
* ``copies``: saves and loads, and the reports of the ranks.
* ``holds``: what keeps an entry that nobody uses yet.
* ``deferral``: requests that wait, and their budget.
"""
