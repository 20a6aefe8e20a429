# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the descriptions of the models."""

from ec_protocol.errors import ECError


class ManifestError(ECError):
    """``models.toml`` or ``manifest.json`` cannot be used.

    The message names the file or the model, the field, its value, and what to write.
    """
