\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE MCAnnounce ------------------------------
\* Bounds for Announce.

EXTENDS Announce

CONSTANTS A, B

\* Two requests for one encoding, one for another.
TwoOfOne == [r \in Requests |-> IF r = 3 THEN B ELSE A]
=============================================================================
