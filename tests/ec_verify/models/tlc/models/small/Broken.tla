\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE Broken -------------------------------
EXTENDS Naturals
VARIABLE x
Init == x = 0
Next == x' = y
=============================================================================
