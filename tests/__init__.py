# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

#: The checkout.
ROOT = Path(__file__).resolve().parent.parent
