\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE MCEviction ------------------------------
\* Bounds for Eviction.

EXTENDS Eviction

CONSTANTS A, B, C, D

\* The others fill the region of three blocks; A takes two of them.
SizeMixed == [e \in Enc |-> IF e = A THEN 2 ELSE 1]
=============================================================================
