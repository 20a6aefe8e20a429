\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE Counter -------------------------------
\* A counter with one fault of each kind, for the tests of the TLC runner.
EXTENDS Naturals, Sequences

CONSTANT Max

VARIABLES x, log

vars == <<x, log>>

Init == x = 0 /\ log = <<>>

Step(k) ==
    /\ x + k <= Max
    /\ x' = x + k
    /\ log' = <<[by |-> k, why |-> "a value that is long enough to be printed over lines"],
                [by |-> k + 1, why |-> "a value that is long enough to be printed over lines"]>>

Reset ==
    /\ x = Max
    /\ x' = 0
    /\ log' = <<>>

Never ==
    /\ x > Max
    /\ x' = 0
    /\ UNCHANGED log

Next == (\E k \in {1, 2} : Step(k)) \/ Reset
NextWithoutReset == \E k \in {1, 2} : Step(k)
NextWithNever == Next \/ Never

Spec == Init /\ [][Next]_vars
StopsSpec == Init /\ [][NextWithoutReset]_vars
DeadSpec == Init /\ [][NextWithNever]_vars
FairSpec == Spec /\ WF_vars(Next)

TypeOK == x \in 0 .. Max
SmallInv == x < 2
PositiveInv == x > 0
UnreadableInv == x < 2 \/ log[9].by = 1
GrowsProp == [][x' > x]_x
ReturnsProp == []<>(x = 0)
PassesTwoProp == []<>(x = 2)
==============================================================================
