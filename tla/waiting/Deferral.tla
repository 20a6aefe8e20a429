\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE Deferral ------------------------------
\* Requests that wait for an encoding which the tier does not have: the engine
\* asks about each of them step by step, and each is admitted, to a load or to
\* its own encoder, or fails, within its budget. What a fetch does meanwhile is
\* PeerRead's; here it ends when it likes, well or badly, or never does.
\*
\* Time is real here, since the bound is what is to be shown: Tick counts for
\* everybody, and an engine step lasts at most StepMax ticks.
EXTENDS Naturals

CONSTANTS
    Requests,
    Names,          \* mm_hashes.
    Want,           \* [Requests -> Names]: what each waits for.
    Media,          \* Requests that could encode for themselves.
    Budget,         \* Ticks that a request may be deferred (fetch_budget_s).
    StepMax         \* Ticks between two questions about one request, at most.

CONSTANTS           \* Safeguards, TRUE except in bug configs.
    OwnBudget,      \* The budget is the request's, not that of the fetch it joins.
    AnyReason,      \* It runs whatever the request waits for, a local save too.
    Remembers,      \* Who was told to fall back is told so again.
    EngineGoesOn    \* The engine asks again: fairness.

VARIABLES
    tier,   \* [Names -> "absent", "saving", "fetching", "ready"].
    req,    \* [Requests -> state], see below.
    left,   \* [Requests -> ticks of the budget that are left].
    waited, \* Ghost, [Requests -> ticks since it was first deferred].
    quiet,  \* [Requests -> ticks since the engine asked].
    held,   \* Requests whose fetched encoding is held for them.
    told    \* Requests that were told to fall back.

\* A request is "new", "waiting", then "loaded", "encoded", "failed" or "left".
vars == <<tier, req, left, waited, quiet, held, told>>

Waits(r) == req[r] = "waiting"
Held(n)  == \E r \in held : Want[r] = n
Limit    == Budget + StepMax

Init ==
    /\ tier = [n \in Names |-> "absent"]
    /\ req = [r \in Requests |-> "new"]
    /\ left = [r \in Requests |-> Budget]
    /\ waited = [r \in Requests |-> 0]
    /\ quiet = [r \in Requests |-> 0]
    /\ held = {}
    /\ told = {}

-----------------------------------------------------------------------------
\* The engine asks about r, once a step: ECScheduler.ensure_cache_available, and
\* behind it Fetches.fetch. told is Fetches' _failed, left what
\* within_budget leaves, held the hold "fetched".

Answer(r, st) ==
    /\ req' = [req EXCEPT ![r] = st]
    /\ quiet' = [quiet EXCEPT ![r] = 0]
    \* A request that is over counts nothing any more.
    /\ left' = [left EXCEPT ![r] = IF st = "waiting" THEN @ ELSE 0]
    /\ waited' = [waited EXCEPT ![r] = IF st = "waiting" THEN @ ELSE 0]
    /\ held' = held \ {r}

Asked(r) == req[r] \in {"new", "waiting"}

Load(r) ==
    /\ Asked(r)
    /\ tier[Want[r]] = "ready"
    /\ Answer(r, "loaded")
    /\ UNCHANGED <<tier, told>>

\* Told so before, out of budget, or no room, no peer, nothing to wait for.
FallBack(r) ==
    /\ Asked(r)
    /\ \/ tier[Want[r]] = "fetching" /\ r \in told /\ Remembers
       \/ tier[Want[r]] # "ready" /\ left[r] = 0
       \/ tier[Want[r]] = "absent"
       \/ tier[Want[r]] = "saving" /\ r \in Media
    /\ Answer(r, IF r \in Media THEN "encoded" ELSE "failed")
    /\ told' = told \cup {r}
    /\ UNCHANGED tier

\* Wait for a fetch, a new one or one under way, or for a save of our own.
Defer(r) ==
    /\ Asked(r)
    /\ left[r] > 0
    /\ \/ tier[Want[r]] \in {"absent", "fetching"} /\ (Remembers => r \notin told)
       \/ tier[Want[r]] = "saving" /\ r \notin Media
    /\ tier' = [tier EXCEPT ![Want[r]] = IF @ = "absent" THEN "fetching" ELSE @]
    /\ req' = [req EXCEPT ![r] = "waiting"]
    /\ quiet' = [quiet EXCEPT ![r] = 0]
    /\ left' = IF tier[Want[r]] = "absent" /\ ~OwnBudget
               THEN [left EXCEPT ![r] = Budget] ELSE left
    /\ UNCHANGED <<waited, held, told>>

\* The request was aborted.
Leave(r) ==
    /\ Asked(r)
    /\ Answer(r, "left")
    /\ UNCHANGED <<tier, told>>

-----------------------------------------------------------------------------
\* Environment.

FetchLands(n) ==
    /\ tier[n] = "fetching"
    /\ tier' = [tier EXCEPT ![n] = "ready"]
    /\ held' = held \cup {r \in Requests : Waits(r) /\ Want[r] = n}
    /\ UNCHANGED <<req, left, waited, quiet, told>>

\* Whoever waits is told.
FetchFails(n) ==
    /\ tier[n] = "fetching"
    /\ tier' = [tier EXCEPT ![n] = "absent"]
    /\ told' = told \cup {r \in Requests : Waits(r) /\ Want[r] = n}
    /\ UNCHANGED <<req, left, waited, quiet, held>>

\* Another request of this instance encodes it.
SaveBegin(n) ==
    /\ tier[n] = "absent"
    /\ tier' = [tier EXCEPT ![n] = "saving"]
    /\ UNCHANGED <<req, left, waited, quiet, held, told>>

SaveEnd(n) ==
    /\ tier[n] = "saving"
    /\ \E st \in {"ready", "absent"} : tier' = [tier EXCEPT ![n] = st]
    /\ UNCHANGED <<req, left, waited, quiet, held, told>>

Evict(n) ==
    /\ tier[n] = "ready"
    /\ ~Held(n)
    /\ tier' = [tier EXCEPT ![n] = "absent"]
    /\ UNCHANGED <<req, left, waited, quiet, held, told>>

\* fetched_hold_s is over, or another hold displaced it.
HoldEnds(r) ==
    /\ r \in held
    /\ held' = held \ {r}
    /\ UNCHANGED <<tier, req, left, waited, quiet, told>>

\* Counted up to one more than is allowed.
Tick ==
    /\ \E r \in Requests : Waits(r)
    /\ \A r \in Requests : Waits(r) => quiet[r] < StepMax
    /\ LET w == {r \in Requests : Waits(r)}
           Runs(r) == AnyReason \/ tier[Want[r]] = "fetching"
       IN  /\ left' = [r \in Requests |-> IF r \in w /\ left[r] > 0 /\ Runs(r)
                                          THEN left[r] - 1 ELSE left[r]]
           /\ waited' = [r \in Requests |-> IF r \in w /\ waited[r] <= Limit
                                            THEN waited[r] + 1 ELSE waited[r]]
           /\ quiet' = [r \in Requests |-> IF r \in w THEN quiet[r] + 1 ELSE quiet[r]]
    /\ UNCHANGED <<tier, req, held, told>>

\* For the deadlock check.
AllOver ==
    /\ \A r \in Requests : ~Asked(r)
    /\ UNCHANGED vars

Next ==
    \/ \E r \in Requests : Load(r) \/ FallBack(r) \/ Defer(r) \/ Leave(r) \/ HoldEnds(r)
    \/ \E n \in Names : FetchLands(n) \/ FetchFails(n) \/ SaveBegin(n) \/ SaveEnd(n) \/ Evict(n)
    \/ Tick
    \/ AllOver

Spec == Init /\ [][Next]_vars

\* Only the engine, which asks, and the clock: no fetch and no save need end.
Fairness ==
    /\ WF_vars(Tick)
    /\ EngineGoesOn => \A r \in Requests : WF_vars(Load(r) \/ FallBack(r) \/ Defer(r))

FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
    /\ tier \in [Names -> {"absent", "saving", "fetching", "ready"}]
    /\ req \in [Requests -> {"new", "waiting", "loaded", "encoded", "failed", "left"}]
    /\ left \in [Requests -> 0..Budget]
    /\ waited \in [Requests -> 0..Limit + 1]
    /\ quiet \in [Requests -> 0..StepMax]
    /\ held \subseteq Requests
    /\ told \subseteq Requests

\* EC-5.9: nobody is deferred longer than the budget and what was left, when it
\* ended, of the engine's step.
WithinBudgetInv == \A r \in Requests : Waits(r) => waited[r] <= Limit

\* Only a request that cannot encode for itself fails.
FailsAloneInv == \A r \in Requests : req[r] = "failed" => r \notin Media

\* Who was told to fall back does not go on waiting for another fetch.
AnswerSticksProp ==
    [][\A r \in Requests :
          r \in told /\ quiet'[r] < quiet[r] /\ tier'[Want[r]] = "fetching" => ~Waits(r)']_vars

AdmittedProp == \A r \in Requests : req[r] = "waiting" ~> req[r] # "waiting"
=============================================================================
