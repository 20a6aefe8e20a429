# SPDX-License-Identifier: Apache-2.0
"""The shared region: one file in ``/dev/shm`` per instance and data-parallel rank.

* ``shared``: ``SharedRegion``, what everybody else uses.
* ``opening``: create, join, reap or wait.
* ``file``, ``header``: the file, its locks and its trailer.
* ``marks``: who of a start has which file open, when the name cannot tell any more.
* ``memory``, ``numa``: room for it, and its pages.
* ``guard``: the tiny process that cleans up after a SIGKILL of all others.
* ``errors``: what can go wrong.
"""
