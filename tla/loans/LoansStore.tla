\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE LoansStore -----------------------------
\* Loans refines ContentStore: the mapping.
\*
\* | ContentStore     | Loans                                                  |
\* | places           | the engine's region                                    |
\* | what they serve  | names of ready entries, and the bytes that really lie  |
\* |                  | in their blocks                                        |
\* | operations       | loans: each is one fetch into the region               |
\* | asked            | lent                                                   |
\* | got              | its entry is ready                                     |
\* | nothing          | lost, retired, or returned without an entry            |
\* | idle             | none yet, or what landed was evicted                   |
\*
\* Who waits for a lost READ is told so at once, so that a lost loan returned nothing:
\* what becomes of its blocks after that is no user's business.
EXTENDS Loans

Store == INSTANCE ContentStore WITH
    Names <- Names,
    Places <- {"engine"},
    Ops <- Loans,
    Garbage <- Junk,
    serves <- [p \in {"engine"} |->
                  {<<name[l], bytes[at[l]]>> : l \in {k \in Loans : entry[k] = "ready"}}],
    op <- [l \in Loans |->
              CASE loan[l] = "lent" -> [st |-> "asked", at |-> "engine", name |-> name[l]]
                [] entry[l] = "ready" ->
                       [st |-> "got", name |-> name[l], bytes |-> bytes[at[l]]]
                [] loan[l] # "none" /\ name[l] # None -> [st |-> "nothing", name |-> name[l]]
                [] OTHER -> [st |-> "idle"]]

StoreSpec == Store!StoreSpec
=============================================================================
