# SPDX-License-Identifier: Apache-2.0
"""Errors of the shared region. Each message says what was found, where, and the fix."""

from __future__ import annotations

from ec_protocol.errors import ECError


class RegionError(ECError):
    """Base: the region cannot be made, found or used as asked.

    Attributes:
        path: The region's path, or its directory when there is no path yet.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class RegionArgumentError(RegionError, ValueError):
    """An instance id, rank, geometry or extent that no region can have."""


class RegionSpaceError(RegionError):
    """The file system or the memory behind it has no room for the region.

    Attributes:
        wanted: Bytes that the region takes.
        free: Bytes that could be had.
    """

    def __init__(self, path: str, message: str, *, wanted: int, free: int) -> None:
        super().__init__(path, message)
        self.wanted = wanted
        self.free = free


class RegionForeignError(RegionError):
    """Something that is not a region of ours lies at the path; it is left alone."""


class RegionBusyError(RegionError):
    """The region at the path belongs to processes that are alive and are not ours."""


class RegionMissingError(RegionError):
    """Nobody created the region in time."""


class RegionLostError(RegionMissingError):
    """The region's name is gone while processes of the same start still use its file."""


class RegionIdentityError(RegionError):
    """A step is about another region's file than the one that this worker has open."""


class RegionClosedError(RegionError):
    """The region was used after ``close``."""
