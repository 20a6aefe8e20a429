# SPDX-License-Identifier: Apache-2.0
"""Copies between device and region.

* ``base``: what a copy engine owes.
* ``cpu``: host memory. ``cuda``: CUDA streams; ``cuda_methods``: how it moves many
  pieces; ``cuda_pinning``: page-locking of the region.
"""
