----------------------------- MODULE SideEffects -----------------------------
\* Exports and archived content in a blob store: register, prepare, commit,
\* publish, clean up.
\*
\* Modelled: two attempts at the same export, each with its own content, crashes
\* at every step, a publisher and a cleaner that anybody may be.
\*
\* Left out, and why that is sound: several exports, which share nothing; a store
\* that fails, which is a crash before the step.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Attempts,
  NoOne,
  Crashes

CONSTANTS             \* Guards. TRUE in the design; each is FALSE in its own mutant
  RegistersFirst,     \* the attempt's name is written down before anything is put there
  OwnName,            \* each attempt prepares under a name of its own
  CommitIsCas,        \* one attempt is committed
  PublishesCommitted, \* what is made visible is the committed attempt's ...
  PublishesAgain,     \* ... by anybody, until it is
  CleansLosersOnly,   \* the cleaner spares the committed attempt
  CleansTheOver       \* ... and those that are still at work

VARIABLES
  pc,         \* attempt -> idle, registered, prepared, committed, over
  registered, \* attempts that are written down
  blob,       \* name -> the attempt whose content lies there; NoOne: nothing
  committed,  \* the attempt that is committed
  visible,    \* the name that the world can see
  crashes,    \* crashes left
  early,      \* history: something was visible before the commit
  torn,       \* history: the world saw another content than the committed attempt's, or none
  twice       \* history: a second attempt was committed

vars == <<pc, registered, blob, committed, visible, crashes, early, torn, twice>>

Shared == CHOOSE a \in Attempts : TRUE
Name(a) == IF OwnName THEN a ELSE Shared
Init ==
  /\ pc = [a \in Attempts |-> "idle"] /\ registered = {} /\ blob = [a \in Attempts |-> NoOne]
  /\ committed = NoOne /\ visible = NoOne /\ crashes = Crashes /\ early = FALSE /\ torn = FALSE /\ twice = FALSE
At(a, where) == pc' = [pc EXCEPT ![a] = where]

\* Register writes the name down.
Register(a) ==
  /\ pc[a] = "idle" /\ At(a, "registered")
  /\ registered' = IF RegistersFirst THEN registered \union {a} ELSE registered
  /\ UNCHANGED <<blob, committed, visible, crashes, early, torn, twice>>
\* Prepare puts the content there; nobody can see it.
Prepare(a) ==
  /\ pc[a] = "registered" /\ At(a, "prepared") /\ blob' = [blob EXCEPT ![Name(a)] = a]
  /\ torn' = (torn \/ (visible = Name(a) /\ committed # a))
  /\ UNCHANGED <<registered, committed, visible, crashes, early, twice>>
\* Commit: the state changes and names the attempt whose content it is.
Commit(a) ==
  /\ pc[a] = "prepared"
  /\ \/ /\ committed = NoOne \/ ~CommitIsCas
        /\ committed' = a /\ twice' = (twice \/ committed # NoOne) /\ At(a, "committed")
        /\ registered' = registered \union {a}
     \/ committed # NoOne /\ CommitIsCas /\ At(a, "over") /\ UNCHANGED <<committed, twice, registered>>
  /\ UNCHANGED <<blob, visible, crashes, early, torn>>
\* Publish makes it visible; anybody who finds it committed may.
Publish(a) ==
  /\ visible = NoOne
  /\ \/ committed = a /\ (PublishesAgain \/ pc[a] = "committed")
     \/ ~PublishesCommitted /\ pc[a] = "prepared"
  /\ visible' = Name(a) /\ early' = (early \/ committed = NoOne) /\ torn' = (torn \/ blob[Name(a)] # committed)
  /\ pc' = IF pc[a] = "committed" THEN [pc EXCEPT ![a] = "over"] ELSE pc
  /\ UNCHANGED <<registered, blob, committed, crashes, twice>>
\* Crash ends an attempt; what it has put there stays.
Crash(a) ==
  /\ pc[a] \in {"registered", "prepared", "committed"} /\ crashes > 0 /\ crashes' = crashes - 1 /\ At(a, "over")
  /\ UNCHANGED <<registered, blob, committed, visible, early, torn, twice>>
\* Clean removes what a registered attempt has left, when it is over and not the committed one.
Clean(a) ==
  /\ a \in registered
  /\ CleansLosersOnly => committed # a
  /\ CleansTheOver => pc[a] = "over"
  /\ registered' = registered \ {a} /\ blob' = [blob EXCEPT ![Name(a)] = NoOne]
  /\ torn' = (torn \/ visible = Name(a))
  /\ UNCHANGED <<pc, committed, visible, crashes, early, twice>>

Next ==
  \/ \E a \in Attempts : Register(a)
  \/ \E a \in Attempts : Prepare(a)
  \/ \E a \in Attempts : Commit(a)
  \/ \E a \in Attempts : Publish(a)
  \/ \E a \in Attempts : Crash(a)
  \/ \E a \in Attempts : Clean(a)
Fairness == \A a \in Attempts : WF_vars(Register(a)) /\ WF_vars(Prepare(a)) /\ WF_vars(Commit(a)) /\ WF_vars(Publish(a)) /\ WF_vars(Clean(a))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == committed \in Attempts \union {NoOne} /\ registered \subseteq Attempts
\* Nothing is visible before the commit.
NothingVisibleBeforeCommit == ~early
\* What the world sees is the committed attempt's content, and it is there.
PublishedIsTheCommitted == ~torn
\* One attempt is committed.
CommittedOnce == ~twice
\* What is committed is there to be published.
CommittedIsThere == committed # NoOne => blob[Name(committed)] = committed
\* Nothing lies about for ever that no state names.
NoGarbageForEver == <>[](\A a \in Attempts : blob[a] \in {NoOne, committed})
\* What was committed is published.
CommittedIsPublished == (committed # NoOne) ~> (visible # NoOne)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverTwoPrepared == ~\A a \in Attempts : pc[a] = "prepared"
NeverPublishedForACrashed == ~(visible # NoOne /\ crashes = 0 /\ \E a \in Attempts : pc[a] = "over" /\ committed = a)
NeverCleaned == ~(\E a \in Attempts : pc[a] = "over" /\ a \notin registered)
=============================================================================
