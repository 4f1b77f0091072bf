----------------------------- MODULE SideEffects -----------------------------
\* Exports and archived content in a blob store: register, prepare, commit,
\* publish, clean up.
\*
\* Modelled: two attempts at the same export, each with its own content,
\* crashes at every step, and a publisher and a cleaner that any process may
\* be.
\*
\* Left out, and why that is sound: several exports, which share nothing; a
\* store that fails, which is a crash before the step.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Attempts,  \* attempts at the export
  NoAttempt, \* no attempt
  Crashes    \* how many crashes there are

CONSTANTS             \* Guards. TRUE in the design; each is FALSE in its own mutant
  RegistersFirst,     \* the attempt's name is recorded before its content is stored
  OwnName,            \* each attempt stores its content under its own name
  CommitIsCas,        \* one attempt is committed
  PublishesCommitted, \* only the content of the committed attempt is published ...
  PublishesAgain,     \* ... by any process, until it is
  SparesCommitted,    \* the cleaner leaves the committed attempt ...
  CleansEndedOnly     \* ... and attempts that are still running

VARIABLES
  pc,            \* attempt -> idle, registered, prepared, committed, ended
  registered,    \* attempts that are recorded
  blob,          \* name -> the attempt whose content is stored; NoAttempt: none
  committed,     \* the committed attempt
  visible,       \* the name that readers see
  crashes,       \* crashes left
  visibleEarly,  \* history: a content was visible before the commit
  wrongContent,  \* history: readers saw a content other than the committed attempt's, or none
  committedTwice \* history: a second attempt was committed

vars == <<pc, registered, blob, committed, visible, crashes, visibleEarly, wrongContent, committedTwice>>

Shared == CHOOSE a \in Attempts : TRUE
Name(a) == IF OwnName THEN a ELSE Shared
Init ==
  /\ pc = [a \in Attempts |-> "idle"] /\ registered = {} /\ blob = [a \in Attempts |-> NoAttempt]
  /\ committed = NoAttempt /\ visible = NoAttempt /\ crashes = Crashes /\ visibleEarly = FALSE /\ wrongContent = FALSE
  /\ committedTwice = FALSE
At(a, where) == pc' = [pc EXCEPT ![a] = where]

\* Register records the name.
Register(a) ==
  /\ pc[a] = "idle" /\ At(a, "registered")
  /\ registered' = IF RegistersFirst THEN registered \union {a} ELSE registered
  /\ UNCHANGED <<blob, committed, visible, crashes, visibleEarly, wrongContent, committedTwice>>
\* Prepare stores the content; it is not visible yet.
Prepare(a) ==
  /\ pc[a] = "registered" /\ At(a, "prepared") /\ blob' = [blob EXCEPT ![Name(a)] = a]
  /\ wrongContent' = (wrongContent \/ (visible = Name(a) /\ committed # a))
  /\ UNCHANGED <<registered, committed, visible, crashes, visibleEarly, committedTwice>>
\* Commit: the state changes and names the attempt with the content.
Commit(a) ==
  /\ pc[a] = "prepared"
  /\ \/ /\ committed = NoAttempt \/ ~CommitIsCas
        /\ committed' = a /\ committedTwice' = (committedTwice \/ committed # NoAttempt) /\ At(a, "committed")
        /\ registered' = registered \union {a}
     \/ committed # NoAttempt /\ CommitIsCas /\ At(a, "ended") /\ UNCHANGED <<committed, committedTwice, registered>>
  /\ UNCHANGED <<blob, visible, crashes, visibleEarly, wrongContent>>
\* Publish makes it visible; any process that finds it committed may do so.
Publish(a) ==
  /\ visible = NoAttempt
  /\ \/ committed = a /\ (PublishesAgain \/ pc[a] = "committed")
     \/ ~PublishesCommitted /\ pc[a] = "prepared"
  /\ visible' = Name(a) /\ visibleEarly' = (visibleEarly \/ committed = NoAttempt)
  /\ wrongContent' = (wrongContent \/ blob[Name(a)] # committed)
  /\ pc' = IF pc[a] = "committed" THEN [pc EXCEPT ![a] = "ended"] ELSE pc
  /\ UNCHANGED <<registered, blob, committed, crashes, committedTwice>>
\* Crash ends an attempt; its content stays.
Crash(a) ==
  /\ pc[a] \in {"registered", "prepared", "committed"} /\ crashes > 0 /\ crashes' = crashes - 1 /\ At(a, "ended")
  /\ UNCHANGED <<registered, blob, committed, visible, visibleEarly, wrongContent, committedTwice>>
\* Clean removes the content of a registered attempt that has ended and is not
\* the committed one.
Clean(a) ==
  /\ a \in registered
  /\ SparesCommitted => committed # a
  /\ CleansEndedOnly => pc[a] = "ended"
  /\ registered' = registered \ {a} /\ blob' = [blob EXCEPT ![Name(a)] = NoAttempt]
  /\ wrongContent' = (wrongContent \/ visible = Name(a))
  /\ UNCHANGED <<pc, committed, visible, crashes, visibleEarly, committedTwice>>

Next ==
  \/ \E a \in Attempts : Register(a)
  \/ \E a \in Attempts : Prepare(a)
  \/ \E a \in Attempts : Commit(a)
  \/ \E a \in Attempts : Publish(a)
  \/ \E a \in Attempts : Crash(a)
  \/ \E a \in Attempts : Clean(a)
Fairness == \A a \in Attempts :
  WF_vars(Register(a)) /\ WF_vars(Prepare(a)) /\ WF_vars(Commit(a)) /\ WF_vars(Publish(a)) /\ WF_vars(Clean(a))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == committed \in Attempts \union {NoAttempt} /\ registered \subseteq Attempts
\* Nothing is visible before the commit.
NothingVisibleBeforeCommit == ~visibleEarly
\* Readers see the committed attempt's content, and it exists.
PublishedIsTheCommitted == ~wrongContent
\* One attempt is committed.
CommittedOnce == ~committedTwice
\* The content of the committed attempt exists.
CommittedIsKept == committed # NoAttempt => blob[Name(committed)] = committed
\* Content that no state names is removed in the end.
NoGarbageForEver == <>[](\A a \in Attempts : blob[a] \in {NoAttempt, committed})
\* What was committed is published.
CommittedIsPublished == (committed # NoAttempt) ~> (visible # NoAttempt)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverTwoPrepared == ~\A a \in Attempts : pc[a] = "prepared"
NeverPublishedForACrashed == ~(visible # NoAttempt /\ crashes = 0 /\ \E a \in Attempts : pc[a] = "ended" /\ committed = a)
NeverCleaned == ~(\E a \in Attempts : pc[a] = "ended" /\ a \notin registered)
=============================================================================
