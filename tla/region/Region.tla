\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE Region -------------------------------
\* The shared-memory file of an engine instance: several processes create, join,
\* share and remove it, each of them may be killed at any moment, and so may the
\* guard that watches the file. Each action is one system call, which is where
\* the others may come in between.
\*
\* Locks are the kernel's: shared ones for whoever maps the file, an exclusive
\* one for whoever wants to remove a file that nobody maps, and all of them go
\* with their process. "exclusive" here means flock; the record lock is a second
\* lock, by which the processes of one instance take turns to remove the name.

EXTENDS Lifecycle, Naturals, FiniteSets

CONSTANTS
    Procs,          \* Processes that open the region, each started once.
    Sweepers,       \* Processes that only sweep: starts of other instances.
    StartOf,        \* [Procs -> Starts]: processes of one start share a nonce.
    NameOf,         \* [Starts -> Names]: the name that the instance id gives.
    Names,          \* Names of regions in the folder.
    Files,          \* Inodes.
    Room,           \* How many regions the file system has room for.
    CanKill,        \* Subset of Procs, Sweepers and {Guard}: who may be killed.
    CanClose,       \* BOOLEAN: processes may end in an orderly way.
    Turns,          \* BOOLEAN: one process at a time creates a name's file. Saves
                    \* memory, and is not relied on for anything else.
    Guard,          \* The guard of a file, as a holder of its lock.
    None

CONSTANTS           \* Safeguards, TRUE except in bug configs.
    NameWhole,      \* A file gets its name only when it is complete.
    LockFirst,      \* A creator has its shared lock before the file has a name.
    LockProves,     \* Only the exclusive lock proves that nobody uses a file.
    VerifyName,     \* Under the lock, look whether the name still means the file.
    RecheckJoin,    \* The same for whoever joins.
    SameStart,      \* Only a file of one's own start is joined.
    UnlinkTurns,    \* Processes of an instance take turns to remove its name.
    SweepFirst,     \* A creator removes orphans before it looks for room.
    HaveGuards,     \* Creators start a guard.
    MarkLook,       \* Before a file is made: does its start have marks already?
    MarkFirst,      \* A mark is set before the name is looked at again, not after.
    MarkAgain       \* With one's own mark set: has the start marks of another file?

ASSUME SweepFirst \in BOOLEAN /\ Room \in Nat

VARIABLES
    path,       \* [Names -> Files or None]
    st,         \* [Files -> RegionStates]; "unlinked" also before the first use.
    start,      \* [Files -> whose start made it]
    whole,      \* [Files -> BOOLEAN]: size, pages and header are in place.
    word,       \* [Files -> "live" or "draining"]: the state word in the file.
    shared,     \* [Files -> set of Procs that hold the shared lock]
    excl,       \* [Files -> holder of the exclusive lock, or None]
    record,     \* [Files -> holder of the record lock, or None]
    turn,       \* [Names -> Procs or None]: whose turn it is to create.
    pc,         \* [Procs and Sweepers -> where the process is]
    fd,         \* [Procs and Sweepers -> the file that it has open, or None]
    todo,       \* [Procs and Sweepers -> names that its sweep has yet to visit]
    guard,      \* [Files -> "none", "waiting", "locked" or "checked"]
    ev

fileVars == <<path, st, start, whole, word>>
lockVars == <<shared, excl, record, turn>>
procVars == <<pc, fd, todo>>
vars == <<fileVars, lockVars, procVars, guard, ev>>

Users == Procs \cup Sweepers
Starts == {StartOf[p] : p \in Procs}
Name(p) == NameOf[StartOf[p]]
Gone == {"off", "dead"}

\* A file exists while it has a name or somebody has it open.
Exists(f) == \/ st[f] \notin RegionTerminal
             \/ \E u \in Users : fd[u] = f
             \/ guard[f] # "none"
NameFor(f) == NameOf[start[f]]

\* Whoever has a file that had its name sets a mark: a lock on the folder, at a place that
\* stands for start and file. It goes with the process, and a file's name does not matter.
Marked(p) ==
    pc[p] \in {"up", "u_check", "u_remove"} \cup IF MarkFirst THEN {"recheck", "late"} ELSE {}
Marks(s) == {fd[q] : q \in {r \in Procs : StartOf[r] = s /\ Marked(r)}}

LockFree(f) == excl[f] = None /\ shared[f] = {}

\* Process u lets go of file f and of every lock on it.
Closed(u, f) ==
    /\ shared' = [shared EXCEPT ![f] = @ \ {u}]
    /\ excl' = [excl EXCEPT ![f] = IF @ = u THEN None ELSE @]
    /\ fd' = [fd EXCEPT ![u] = None]

Goto(u, there) == pc' = [pc EXCEPT ![u] = there]

-----------------------------------------------------------------------------
Init ==
    /\ path = [n \in Names |-> None]
    /\ st = [f \in Files |-> "unlinked"]
    /\ start = [f \in Files |-> None]
    /\ whole = [f \in Files |-> FALSE]
    /\ word = [f \in Files |-> "live"]
    /\ shared = [f \in Files |-> {}]
    /\ excl = [f \in Files |-> None]
    /\ record = [f \in Files |-> None]
    /\ turn = [n \in Names |-> None]
    /\ pc = [u \in Users |-> "off"]
    /\ fd = [u \in Users |-> None]
    /\ todo = [u \in Users |-> {}]
    /\ guard = [f \in Files |-> "none"]
    /\ ev = {}

\* ------------------------------------------------------------------ opening

Start(p) ==
    /\ pc[p] \in {"off", "nospace", "refused"}
    /\ Goto(p, "look")
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, lockVars, fd, todo, guard>>

\* open(2) at the path: no file, or one that may have changed by the next step.
Look(p) ==
    /\ pc[p] = "look"
    /\ fd' = [fd EXCEPT ![p] = path[Name(p)]]
    /\ Goto(p, IF path[Name(p)] = None THEN "turn" ELSE "try")
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, lockVars, todo, guard>>

\* flock(LOCK_EX | LOCK_NB): having it proves an orphan.
TryExclusive(p) ==
    /\ pc[p] = "try"
    /\ LET f == fd[p]
       IN IF LockFree(f)
            THEN /\ excl' = [excl EXCEPT ![f] = p]
                 /\ Goto(p, "check")
                 /\ UNCHANGED <<shared, fd>>
            ELSE IF (SameStart => start[f] = StartOf[p]) /\ word[f] = "live"
              THEN Goto(p, "share") /\ UNCHANGED <<shared, excl, fd>>
              ELSE Goto(p, "look") /\ Closed(p, f)
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, record, turn, todo, guard>>

\* flock(LOCK_SH | LOCK_NB)
TryShared(p) ==
    /\ pc[p] = "share"
    /\ LET f == fd[p]
       IN IF excl[f] = None
            THEN /\ shared' = [shared EXCEPT ![f] = @ \cup {p}]
                 /\ Goto(p, IF MarkFirst THEN "mark" ELSE "recheck")
                 /\ UNCHANGED <<excl, fd>>
            ELSE Goto(p, "look") /\ Closed(p, f)
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, record, turn, todo, guard>>

\* fcntl(F_OFD_SETLK) on the folder.
Mark(p) ==
    /\ pc[p] = "mark"
    /\ Goto(p, IF MarkFirst THEN "recheck" ELSE "up")
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, lockVars, fd, todo, guard>>

\* Before the lock, or the mark, the last user may have gone, and the name with it, or the
\* shutdown may have begun. And whoever has another file of this start may have set its mark
\* since this process looked for marks, or since it found the name free.
Join(p) ==
    /\ pc[p] = "recheck"
    /\ LET f == fd[p]
       IN IF /\ RecheckJoin => path[Name(p)] = f /\ word[f] = "live"
             /\ MarkAgain => Marks(StartOf[p]) \subseteq {f}
            THEN /\ Goto(p, IF p \notin shared[f] THEN "late"
                            ELSE IF MarkFirst THEN "up" ELSE "mark")
                 /\ UNCHANGED <<shared, excl, fd>>
            ELSE Goto(p, "look") /\ Closed(p, f)
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, record, turn, todo, guard>>

\* ----------------------------------------------------------------- creating

TakeTurn(p) ==
    /\ pc[p] = "turn"
    /\ IF turn[Name(p)] = None /\ path[Name(p)] = None
         THEN /\ turn' = [turn EXCEPT ![Name(p)] = IF Turns THEN p ELSE None]
              /\ todo' = [todo EXCEPT ![p] = IF SweepFirst THEN Names ELSE {}]
              /\ Goto(p, IF MarkLook THEN "marks" ELSE "sweep")
         ELSE Goto(p, "look") /\ UNCHANGED <<turn, todo>>
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, shared, excl, record, fd, guard>>

\* fcntl(F_OFD_GETLK) on the folder: the name is free, but has the start a file? Then it
\* had its name and has lost it, and whoever is late is told so.
LookForMarks(p) ==
    /\ pc[p] = "marks"
    /\ IF Marks(StartOf[p]) = {}
         THEN Goto(p, "sweep") /\ UNCHANGED <<turn, todo>>
         ELSE /\ Goto(p, IF path[Name(p)] = None THEN "refused" ELSE "look")
              /\ todo' = [todo EXCEPT ![p] = {}]
              /\ turn' = [n \in Names |-> IF turn[n] = p THEN None ELSE turn[n]]
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, shared, excl, record, fd, guard>>

\* open(2) with O_TMPFILE and the shared lock, if there is room for the pages.
Create(p) ==
    /\ pc[p] = "sweep"
    /\ todo[p] = {}
    /\ IF Cardinality({f \in Files : Exists(f)}) < Room
         THEN \E f \in {g \in Files : ~Exists(g)} :
                /\ st' = [st EXCEPT ![f] = RegionInitial]
                /\ start' = [start EXCEPT ![f] = StartOf[p]]
                /\ whole' = [whole EXCEPT ![f] = FALSE]
                /\ word' = [word EXCEPT ![f] = "live"]
                /\ shared' = [shared EXCEPT ![f] = IF LockFirst THEN {p} ELSE {}]
                /\ fd' = [fd EXCEPT ![p] = f]
                /\ Goto(p, IF NameWhole THEN "fill" ELSE "link")
                /\ UNCHANGED turn
         ELSE /\ Goto(p, "nospace")
              /\ turn' = [turn EXCEPT ![Name(p)] = None]
              /\ UNCHANGED <<st, start, whole, word, shared, fd>>
    /\ ev' = {}
    /\ UNCHANGED <<path, excl, record, todo, guard>>

\* Pages and header are written; the guard comes before the name, or not at all.
Fill(p) ==
    /\ pc[p] = "fill"
    /\ whole' = [whole EXCEPT ![fd[p]] = TRUE]
    /\ \/ HaveGuards /\ guard' = [guard EXCEPT ![fd[p]] = "waiting"]
       \/ ~HaveGuards /\ UNCHANGED guard
    /\ Goto(p, IF NameWhole THEN "link" ELSE IF MarkFirst THEN "mark" ELSE "recheck")
    /\ ev' = {}
    /\ UNCHANGED <<path, st, start, word, lockVars, fd, todo>>

\* linkat(2): the name goes to one file.
RegionPublish(p) ==
    /\ pc[p] = "link"
    /\ path[Name(p)] = None
    /\ CanFire(RegionEdges, st[fd[p]], "publish", {})
    /\ path' = [path EXCEPT ![Name(p)] = fd[p]]
    /\ st' = [st EXCEPT ![fd[p]] = Fire(RegionEdges, @, "publish", {})]
    /\ turn' = [turn EXCEPT ![Name(p)] = None]
    /\ Goto(p, IF ~NameWhole THEN "fill" ELSE IF MarkFirst THEN "mark" ELSE "recheck")
    /\ ev' = {Ev("region", RegionEdges, st[fd[p]], "publish", {})}
    /\ UNCHANGED <<start, whole, word, shared, excl, record, fd, todo, guard>>

\* Only without LockFirst: the lock comes after the name.
LateLock(p) ==
    /\ pc[p] = "late"
    /\ excl[fd[p]] = None
    /\ shared' = [shared EXCEPT ![fd[p]] = @ \cup {p}]
    /\ Goto(p, "up")
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, excl, record, turn, fd, todo, guard>>

\* Somebody else was first.
RegionAbandon(p) ==
    /\ pc[p] = "link"
    /\ path[Name(p)] # None
    /\ CanFire(RegionEdges, st[fd[p]], "abandon", {})
    /\ st' = [st EXCEPT ![fd[p]] = Fire(RegionEdges, @, "abandon", {})]
    /\ turn' = [turn EXCEPT ![Name(p)] = None]
    /\ Closed(p, fd[p])
    /\ Goto(p, "look")
    /\ ev' = {Ev("region", RegionEdges, st[fd[p]], "abandon", {})}
    /\ UNCHANGED <<path, start, whole, word, record, todo, guard>>

\* ------------------------------------------------------- removing an orphan

\* A sweep visits every name in the folder.
Sweep(u) ==
    /\ pc[u] = "sweep"
    /\ \E n \in todo[u] :
         /\ todo' = [todo EXCEPT ![u] = @ \ {n}]
         /\ fd' = [fd EXCEPT ![u] = path[n]]
         /\ Goto(u, IF path[n] = None THEN "sweep" ELSE "s_try")
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, lockVars, guard>>

\* The guard of "reap": the exclusive lock was to be had.
NoHolders(f) == IF LockFree(f) \/ ~LockProves THEN {"no_holders"} ELSE {}

SweepTry(u) ==
    /\ pc[u] = "s_try"
    /\ LET f == fd[u]
       IN IF CanFire(RegionEdges, "orphan", "reap", NoHolders(f))
            THEN /\ excl' = [excl EXCEPT ![f] = u]
                 /\ Goto(u, "s_check")
                 /\ UNCHANGED <<shared, fd>>
            ELSE Goto(u, "sweep") /\ Closed(u, f)
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, record, turn, todo, guard>>

\* stat(2) of the name: does it still mean the file whose lock we have?
Check(u) ==
    /\ pc[u] \in {"check", "s_check"}
    /\ LET f == fd[u]
           there == IF pc[u] = "check" THEN "look" ELSE "sweep"
       IN IF VerifyName => path[NameFor(f)] = f
            THEN /\ Goto(u, IF pc[u] = "check" THEN "remove" ELSE "s_remove")
                 /\ UNCHANGED <<shared, excl, fd>>
            ELSE Goto(u, there) /\ Closed(u, f)
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, record, turn, todo, guard>>

\* The last step of a removal: unlink(2) takes away whatever has the name now.
\* The death of the holders is noticed here, by the lock, and not earlier.
Remove(n, f) ==
    LET v == path[n]
        orphan == Fire(RegionEdges, st[v], "holders_died", {})
    IN /\ path' = [path EXCEPT ![n] = None]
       /\ IF v = f /\ CanFire(RegionEdges, st[v], "holders_died", {})
            THEN /\ st' = [st EXCEPT ![v] = Fire(RegionEdges, orphan, "reap", {"no_holders"})]
                 /\ ev' = {Ev("region", RegionEdges, st[v], "holders_died", {}),
                           Ev("region", RegionEdges, orphan, "reap", {"no_holders"})}
            ELSE /\ st' = IF v = None THEN st ELSE [st EXCEPT ![v] = "unlinked"]
                 /\ ev' = {}

RegionReap(f) ==
    /\ excl[f] # None
    /\ \/ \E u \in Users :
            /\ u = excl[f] /\ fd[u] = f
            /\ pc[u] \in {"remove", "s_remove"}
            /\ Goto(u, IF pc[u] = "remove" THEN "look" ELSE "sweep")
            /\ Closed(u, f)
            /\ UNCHANGED guard
       \/ /\ guard[f] = "checked"
          /\ guard' = [guard EXCEPT ![f] = "none"]
          /\ excl' = [excl EXCEPT ![f] = None]
          /\ UNCHANGED <<pc, fd, shared>>
    /\ Remove(NameFor(f), f)
    /\ UNCHANGED <<start, whole, word, record, turn, todo>>

\* A sweep is over; the next start begins another.
SweepAgain(u) ==
    /\ u \in Sweepers
    /\ pc[u] = "off" \/ (pc[u] = "sweep" /\ todo[u] = {})
    /\ todo' = [todo EXCEPT ![u] = Names]
    /\ Goto(u, "sweep")
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, lockVars, fd, guard>>

\* The guard sleeps in flock(LOCK_EX) until nobody holds the file.
GuardLocks(f) ==
    /\ guard[f] = "waiting"
    /\ LockFree(f)
    /\ excl' = [excl EXCEPT ![f] = Guard]
    /\ guard' = [guard EXCEPT ![f] = "locked"]
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, shared, record, turn, procVars>>

\* No name any more: the guard ends.
GuardChecks(f) ==
    /\ guard[f] = "locked"
    /\ IF VerifyName => path[NameFor(f)] = f
         THEN guard' = [guard EXCEPT ![f] = "checked"] /\ UNCHANGED excl
         ELSE /\ guard' = [guard EXCEPT ![f] = "none"]
              /\ excl' = [excl EXCEPT ![f] = None]
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, shared, record, turn, procVars>>

\* ------------------------------------------------------------------- ending

\* The state word is written; nobody joins from here on.
RegionDrain(p) ==
    /\ pc[p] = "up"
    /\ CanClose
    /\ CanFire(RegionEdges, st[fd[p]], "drain", {})
    /\ st' = [st EXCEPT ![fd[p]] = Fire(RegionEdges, @, "drain", {})]
    /\ word' = [word EXCEPT ![fd[p]] = "draining"]
    /\ ev' = {Ev("region", RegionEdges, st[fd[p]], "drain", {})}
    /\ UNCHANGED <<path, start, whole, lockVars, procVars, guard>>

\* The process ends and leaves the name to others.
Close(p) ==
    /\ pc[p] = "up"
    /\ CanClose
    /\ Closed(p, fd[p])
    /\ Goto(p, "dead")
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, record, turn, todo, guard>>

\* The record lock; whoever does not get it leaves the rest to its holder.
TakeUnlinkTurn(p) ==
    /\ pc[p] = "up"
    /\ CanClose
    /\ word[fd[p]] = "draining"
    /\ LET f == fd[p]
       IN IF record[f] = None \/ ~UnlinkTurns
            THEN /\ record' = [record EXCEPT ![f] = p]
                 /\ Goto(p, "u_check")
                 /\ UNCHANGED <<shared, excl, fd>>
            ELSE Goto(p, "dead") /\ Closed(p, f) /\ UNCHANGED record
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, turn, todo, guard>>

Ended(p) ==
    /\ record' = [record EXCEPT ![fd[p]] = IF @ = p THEN None ELSE @]
    /\ Closed(p, fd[p])
    /\ Goto(p, "dead")

UnlinkCheck(p) ==
    /\ pc[p] = "u_check"
    /\ IF path[Name(p)] = fd[p]
         THEN Goto(p, "u_remove") /\ UNCHANGED <<shared, excl, record, fd>>
         ELSE Ended(p)
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, turn, todo, guard>>

RegionUnlink(p) ==
    /\ pc[p] = "u_remove"
    /\ LET v == path[Name(p)]
       IN /\ path' = [path EXCEPT ![Name(p)] = None]
          /\ IF v = fd[p] /\ CanFire(RegionEdges, st[v], "unlink", {})
               THEN /\ st' = [st EXCEPT ![v] = Fire(RegionEdges, @, "unlink", {})]
                    /\ ev' = {Ev("region", RegionEdges, st[v], "unlink", {})}
               ELSE /\ st' = IF v = None THEN st ELSE [st EXCEPT ![v] = "unlinked"]
                    /\ ev' = {}
    /\ Ended(p)
    /\ UNCHANGED <<start, whole, word, turn, todo, guard>>

\* -------------------------------------------------------------- environment

\* SIGKILL at any moment: descriptors, locks and the turn go with the process,
\* and a file without a name goes as well.
RegionDied(u) ==
    /\ u \in CanKill
    /\ u \in Users
    /\ pc[u] \notin Gone
    /\ Goto(u, "dead")
    /\ todo' = [todo EXCEPT ![u] = {}]
    /\ turn' = [n \in Names |-> IF turn[n] = u THEN None ELSE turn[n]]
    /\ record' = [f \in Files |-> IF record[f] = u THEN None ELSE record[f]]
    /\ IF fd[u] = None
         THEN UNCHANGED <<shared, excl, fd, st>> /\ ev' = {}
         ELSE /\ Closed(u, fd[u])
              /\ IF st[fd[u]] = "creating"
                   THEN /\ st' = [st EXCEPT ![fd[u]] = Fire(RegionEdges, @, "holders_died", {})]
                        /\ ev' = {Ev("region", RegionEdges, st[fd[u]], "holders_died", {})}
                   ELSE UNCHANGED st /\ ev' = {}
    /\ UNCHANGED <<path, start, whole, word, guard>>

GuardDies(f) ==
    /\ Guard \in CanKill
    /\ guard[f] # "none"
    /\ guard' = [guard EXCEPT ![f] = "none"]
    /\ excl' = [excl EXCEPT ![f] = IF @ = Guard THEN None ELSE @]
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, shared, record, turn, procVars>>

\* Everybody has ended, or has the region and nothing to do; for the deadlock
\* check.
AllOver ==
    /\ \A p \in Procs : pc[p] \in {"up", "dead"}
    /\ \A u \in Sweepers : pc[u] \in Gone
    /\ \A f \in Files : guard[f] = "none" \/ (guard[f] = "waiting" /\ shared[f] # {})
    /\ ev' = {}
    /\ UNCHANGED <<fileVars, lockVars, procVars, guard>>

-----------------------------------------------------------------------------
Next ==
    \/ \E p \in Procs : Start(p)
    \/ \E p \in Procs : Look(p)
    \/ \E p \in Procs : TryExclusive(p)
    \/ \E p \in Procs : TryShared(p)
    \/ \E p \in Procs : Mark(p)
    \/ \E p \in Procs : Join(p)
    \/ \E p \in Procs : TakeTurn(p)
    \/ \E p \in Procs : LookForMarks(p)
    \/ \E p \in Procs : Create(p)
    \/ \E p \in Procs : Fill(p)
    \/ \E p \in Procs : RegionPublish(p)
    \/ \E p \in Procs : LateLock(p)
    \/ \E p \in Procs : RegionAbandon(p)
    \/ \E u \in Users : Sweep(u)
    \/ \E u \in Users : SweepTry(u)
    \/ \E u \in Users : Check(u)
    \/ \E f \in Files : RegionReap(f)
    \/ \E u \in Sweepers : SweepAgain(u)
    \/ \E f \in Files : GuardLocks(f)
    \/ \E f \in Files : GuardChecks(f)
    \/ \E p \in Procs : RegionDrain(p)
    \/ \E p \in Procs : Close(p)
    \/ \E p \in Procs : TakeUnlinkTurn(p)
    \/ \E p \in Procs : UnlinkCheck(p)
    \/ \E p \in Procs : RegionUnlink(p)
    \/ \E u \in Users : RegionDied(u)
    \/ \E f \in Files : GuardDies(f)
    \/ AllOver

Spec == Init /\ [][Next]_vars

\* Whoever was not killed goes on; guards and sweepers do their work; nobody has
\* to close, to be killed or to start. A start that failed is tried again.
GoesOn(p) ==
    \/ Look(p) \/ TryExclusive(p) \/ TryShared(p) \/ Mark(p) \/ Join(p) \/ TakeTurn(p)
    \/ LookForMarks(p) \/ Create(p) \/ Fill(p) \/ RegionPublish(p) \/ RegionAbandon(p) \/ Sweep(p) \/ SweepTry(p) \/ Check(p)
    \/ UnlinkCheck(p) \/ RegionUnlink(p)
    \/ (pc[p] \in {"nospace", "refused"} /\ Start(p))
SweepsOn(u) == Sweep(u) \/ SweepTry(u) \/ Check(u) \/ SweepAgain(u)
Fairness ==
    /\ \A p \in Procs : WF_vars(GoesOn(p))
    /\ \A u \in Sweepers : WF_vars(SweepsOn(u))
    /\ \A f \in Files : WF_vars(RegionReap(f)) /\ WF_vars(GuardLocks(f) \/ GuardChecks(f))

FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
    /\ path \in [Names -> Files \cup {None}]
    /\ st \in [Files -> RegionStates]
    /\ start \in [Files -> Starts \cup {None}]
    /\ whole \in [Files -> BOOLEAN]
    /\ word \in [Files -> {"live", "draining"}]
    /\ shared \in [Files -> SUBSET Procs]
    /\ excl \in [Files -> Users \cup {Guard, None}]
    /\ record \in [Files -> Procs \cup {None}]
    /\ turn \in [Names -> Procs \cup {None}]
    /\ fd \in [Users -> Files \cup {None}]
    /\ todo \in [Users -> SUBSET Names]
    /\ guard \in [Files -> {"none", "waiting", "locked", "checked"}]

Mapped(p) == pc[p] \in {"up", "u_check", "u_remove"}

\* While an instance that has not begun to shut down maps its file, the file
\* keeps its name: no reaper, guard, successor or latecomer takes it away.
LiveKeepsNameInv ==
    \A p \in Procs : pc[p] = "up" /\ word[fd[p]] = "live" => path[Name(p)] = fd[p]

\* Whoever maps a file holds its shared lock, and nobody has the exclusive one.
MappedLockedInv ==
    \A p \in Procs : Mapped(p) => p \in shared[fd[p]] /\ excl[fd[p]] = None

\* Nobody maps half a region.
NoHalfMapInv == \A p \in Procs : Mapped(p) => whole[fd[p]]

\* Processes of two starts never share a region.
OneStartInv == \A p \in Procs : Mapped(p) => start[fd[p]] = StartOf[p]

\* The region of one start is one file, whatever became of its name.
OneFileInv ==
    \A p, q \in Procs : Mapped(p) /\ Mapped(q) /\ StartOf[p] = StartOf[q] => fd[p] = fd[q]

\* Where the turns work, a late process does not even make a file.
NoSpareFileInv ==
    \A p, q \in Procs : Mapped(p) /\ StartOf[p] = StartOf[q] => pc[q] \notin {"fill", "link"}

\* A name means a file that exists, and a file has one name at most.
NameInv ==
    /\ \A n \in Names : path[n] # None => st[path[n]] \in {"live", "draining"}
    /\ \A f \in Files : st[f] \in {"live", "draining"} => path[NameFor(f)] = f

\* EC-10.1: the state of a file is what is true of it. One without a name has its creator,
\* a named one is in the state that the word in it says, and whoever finds an orphan
\* removes it in the same step.
StateMeansInv ==
    \A f \in Files :
        /\ st[f] = "creating" => \E p \in Procs : fd[p] = f /\ pc[p] \in {"fill", "link"}
        /\ st[f] \in {"live", "draining"} => st[f] = word[f]
        /\ st[f] # "orphan"

\* EC-1.2: processes publish, shut down and die whenever they like; none of it is an error.
ReceptiveInv ==
    \A f \in Files :
        /\ st[f] = "creating" =>
             \A x \in {"publish", "abandon", "holders_died"} : CanFire(RegionEdges, st[f], x, {})
        /\ st[f] = "live" =>
             \A x \in {"drain", "holders_died"} : CanFire(RegionEdges, st[f], x, {})
        /\ st[f] = "draining" =>
             \A x \in {"unlink", "holders_died"} : CanFire(RegionEdges, st[f], x, {})

EdgesProp ==
    [][\A f \in Files : st'[f] # st[f] =>
         \/ st[f] = "unlinked" /\ st'[f] = "creating"
         \/ \E d \in RegionEdges : /\ d.from = st[f] /\ d.to = st'[f]
                                   /\ <<"region", st[f], d.event, st'[f]>> \in ev'
         \/ \E d, e \in RegionEdges :
              /\ d.from = st[f] /\ e.from = d.to /\ e.to = st'[f]
              /\ <<"region", st[f], d.event, d.to>> \in ev'
              /\ <<"region", e.from, e.event, st'[f]>> \in ev']_vars

\* A file that has a name and no user loses its name, or is used again.
Orphan(n) == path[n] # None /\ shared[path[n]] = {}
ReapedProp == \A n \in Names : Orphan(n) ~> ~Orphan(n)

\* A process that wants its region gets it once all others are gone.
OthersGone(p) == \A q \in Procs \ {p} : pc[q] = "dead"
StartsProp ==
    \A p \in Procs : (pc[p] = "look" /\ OthersGone(p)) ~> (pc[p] \in {"up", "dead"})
=============================================================================
