\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE Endless -------------------------------
\* A state space without end, for timeouts and interruptions.
EXTENDS Naturals
VARIABLE x
Init == x = 0
Up == x' = x + 1
Spec == Init /\ [][Up]_x
TypeOK == x \in Nat
=============================================================================
