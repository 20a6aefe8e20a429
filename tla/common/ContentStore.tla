\* SPDX-License-Identifier: Apache-2.0
---------------------------- MODULE ContentStore ----------------------------
\* What the protocol is for, and all that its users may rely on: a fetch
\* returns the named bytes or nothing, and so does a load. There is no message,
\* lease, block or DMA here; that every step of the models which have them is a
\* step of this module, under a refinement mapping, is what
\* `PROPERTY StoreSpec` checks (TierStore, PeerStore, FleetStore).
\*
\* An encoding is called by its name, so the right bytes of n are n itself.
\* Progress is not promised: whoever asks may never be answered. That somebody
\* gives up in time is the business of the models that have timers.
EXTENDS FiniteSets

CONSTANTS
    Names,      \* mm_hashes.
    Places,     \* Regions that hold encodings.
    Ops,        \* Fetches and loads.
    Garbage     \* Bytes that are no whole encoding.

VARIABLES
    serves,     \* [Places -> set of <<name, bytes>>]: what the place would hand out.
    op          \* [Ops -> record]: what was asked for, and what came of it.

storeVars == <<serves, op>>

Right == {<<n, n>> : n \in Names}

Idle        == [st |-> "idle"]
Asked(p, n) == [st |-> "asked", at |-> p, name |-> n]
Got(n, b)   == [st |-> "got", name |-> n, bytes |-> b]
Nothing(n)  == [st |-> "nothing", name |-> n]

-----------------------------------------------------------------------------
StoreInit ==
    /\ serves = [p \in Places |-> {}]
    /\ op = [o \in Ops |-> Idle]

\* Somebody asks for n: a load out of p, or a fetch into p.
Ask(o) ==
    /\ op[o].st # "asked"
    /\ op'[o].st = "asked"
    /\ op'[o] = Asked(op'[o].at, op'[o].name)
    /\ op'[o].at \in Places /\ op'[o].name \in Names

\* The answer: the named bytes, which lie in p, all of them.
Answer(o) ==
    /\ op[o].st = "asked"
    /\ op'[o] = Got(op[o].name, op[o].name)
    /\ <<op[o].name, op[o].name>> \in serves'[op[o].at]

Refuse(o) ==
    /\ op[o].st = "asked"
    /\ op'[o] = Nothing(op[o].name)

Forget(o) ==
    /\ op[o].st # "asked"
    /\ op'[o] = Idle

OpStep(o) == op'[o] = op[o] \/ Ask(o) \/ Answer(o) \/ Refuse(o) \/ Forget(o)

\* A place may begin to serve an encoding at any moment (it was computed or
\* fetched), and stop at any moment (it was evicted, or its process died); it
\* never serves anything but the right bytes. Several operations may move in
\* one step: a process that dies ends all of its own.
StoreNext ==
    /\ \A p \in Places : serves'[p] \subseteq Right
    /\ DOMAIN serves' = Places
    /\ \A o \in Ops : OpStep(o)

StoreSpec == StoreInit /\ [][StoreNext]_storeVars

-----------------------------------------------------------------------------
\* What follows; PeerStore and the others inherit it.
ServesRightInv == \A p \in Places : serves[p] \subseteq Right
GotRightInv    == \A o \in Ops : op[o].st = "got" => op[o].bytes = op[o].name
=============================================================================
