------------------------------- MODULE Outbox --------------------------------
\* A message is handled once and what it says goes out, whatever fails between.
\*
\* Modelled: a message that the queue hands out several times, also at once, to
\* two handlers that crash at every step; the database with what was changed and,
\* in the same transaction, what is to be published; the broker, which may fail
\* (a crash before its step); the cleaner. In Lemma the message is whatever
\* changes a state, the output a webhook to a customer.
\*
\* With its guards off one by one this is the talk "Implementing an Outbox":
\* SendsAfterUpdate is its first draft, RetriesUntilDone the second, Dedupes the
\* third, PublishesAgain and CapturesOutput the two halves of the fourth.
\*
\* Left out, and why that is sound: several messages, since no step looks at two.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Handlers,
  Copies,           \* how often the queue holds the message
  Crashes           \* how many failures there are; a failure hands the message out again

CONSTANTS           \* Guards. TRUE in the design; each is FALSE in its own mutant
  SendsAfterUpdate, \* nothing is published before the commit
  RetriesUntilDone, \* a failed message comes again until it is acknowledged
  Dedupes,          \* a message that was handled is not handled again
  PublishesAgain,   \* ... but what it says is published all the same
  CapturesOutput,   \* what is published is what was stored with the change
  AcksLast,         \* the message is acknowledged after it was published
  Cleans,           \* what was published is cleaned up
  CleansLate        \* ... only when no copy can come

VARIABLES
  queue,    \* copies that wait
  pc,       \* handler -> idle, got, sent, stored, published
  run,      \* handler -> the number of this execution of the handler
  runs,     \* executions so far
  store,    \* changes in the database: the executions that made them
  known,    \* the message is marked as handled, by this execution; 0: no mark
  out,      \* what was published: the executions whose output it is
  acked,    \* the message has been acknowledged, or given up
  cleaned,  \* the outbox row is gone
  crashes   \* failures left

vars == <<queue, pc, run, runs, store, known, out, acked, cleaned, crashes>>

Init ==
  /\ queue = Copies /\ pc = [h \in Handlers |-> "idle"] /\ run = [h \in Handlers |-> 0] /\ runs = 0
  /\ store = {} /\ known = 0 /\ out = {} /\ acked = FALSE /\ cleaned = FALSE /\ crashes = Crashes

At(h, where) == pc' = [pc EXCEPT ![h] = where]
\* Receive: a handler takes a copy.
Receive(h) ==
  /\ pc[h] = "idle" /\ queue > 0 /\ queue' = queue - 1 /\ At(h, "got")
  /\ runs' = runs + 1 /\ run' = [run EXCEPT ![h] = runs + 1]
  /\ UNCHANGED <<store, known, out, acked, cleaned, crashes>>
\* SendFirst: the draft that publishes before it commits.
SendFirst(h) ==
  /\ ~SendsAfterUpdate /\ pc[h] = "got" /\ At(h, "sent") /\ out' = out \union {run[h]}
  /\ UNCHANGED <<queue, run, runs, store, known, acked, cleaned, crashes>>
\* Update: the change, the mark and the output in one transaction. A message
\* that is marked changes nothing.
Update(h) ==
  /\ pc[h] = IF SendsAfterUpdate THEN "got" ELSE "sent"
  /\ \/ /\ known = 0 \/ ~Dedupes
        /\ store' = store \union {run[h]} /\ known' = run[h] /\ At(h, "stored")
     \/ /\ known # 0 /\ Dedupes /\ UNCHANGED <<store, known>>
        /\ At(h, IF PublishesAgain THEN "stored" ELSE "published")
  /\ UNCHANGED <<queue, run, runs, out, acked, cleaned, crashes>>
\* Publish: what the change said goes to the broker, perhaps once more.
Publish(h) ==
  /\ pc[h] = "stored" /\ (AcksLast \/ acked)
  /\ out' = IF ~SendsAfterUpdate \/ cleaned THEN out ELSE out \union {IF CapturesOutput THEN known ELSE run[h]}
  /\ At(h, "published")
  /\ UNCHANGED <<queue, run, runs, store, known, acked, cleaned, crashes>>
\* Ack: the queue forgets the copy.
Ack(h) ==
  /\ \/ AcksLast /\ pc[h] = "published" /\ At(h, "idle")
     \/ ~AcksLast /\ pc[h] = "stored" /\ ~acked /\ UNCHANGED pc
     \/ ~AcksLast /\ pc[h] = "published" /\ At(h, "idle")
  /\ acked' = TRUE
  /\ UNCHANGED <<queue, run, runs, store, known, out, cleaned, crashes>>
\* Crash: a failure at any step. The copy becomes visible again, unless it was acknowledged.
Crash(h) ==
  /\ pc[h] # "idle" /\ crashes > 0 /\ crashes' = crashes - 1 /\ At(h, "idle")
  /\ queue' = IF RetriesUntilDone /\ (AcksLast \/ ~acked) THEN queue + 1 ELSE queue
  /\ acked' = (acked \/ (~RetriesUntilDone /\ queue = 0))
  /\ UNCHANGED <<run, runs, store, known, out, cleaned>>
\* Clean: the outbox row of a published message goes, and the mark with it.
Clean ==
  /\ Cleans /\ known \in out /\ ~cleaned
  /\ CleansLate => (queue = 0 /\ \A h \in Handlers : pc[h] = "idle")
  /\ cleaned' = TRUE /\ known' = 0
  /\ UNCHANGED <<queue, pc, run, runs, store, out, acked, crashes>>

Next ==
  \/ \E h \in Handlers : Receive(h)
  \/ \E h \in Handlers : SendFirst(h)
  \/ \E h \in Handlers : Update(h)
  \/ \E h \in Handlers : Publish(h)
  \/ \E h \in Handlers : Ack(h)
  \/ \E h \in Handlers : Crash(h)
  \/ Clean
Fairness ==
  /\ WF_vars(\E g \in Handlers : Receive(g)) /\ WF_vars(Clean)
  /\ \A h \in Handlers : WF_vars(Update(h)) /\ WF_vars(Publish(h)) /\ WF_vars(Ack(h))
Spec == Init /\ [][Next]_vars /\ Fairness

Over == acked /\ queue = 0 /\ \A h \in Handlers : pc[h] = "idle"
-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == runs \in Nat /\ store \subseteq 1..runs /\ out \subseteq 1..runs
\* Nothing is published that no change stands behind.
NoGhostMessages == out # {} => store # {}
\* Nothing that was changed stays unsaid once the message is done with.
NoLostMessages == (Over /\ store # {}) => out # {}
\* A message changes the state once.
NoDuplicatedProcessing == Cardinality(store) <= 1
\* All that is published for a message is the output of one execution, the stored one.
ConsistentOutput == Cardinality(out) <= 1
\* In the end it is published and cleaned up.
PublishedAndCleaned == <>(out # {} /\ cleaned)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverTwoAtOnce == ~\A h \in Handlers : pc[h] = "got"
NeverPublishedAgain == ~\E h \in Handlers : pc[h] = "stored" /\ out # {} /\ known # run[h]
NeverCrashedBetween == ~(crashes < Crashes /\ store # {} /\ out = {} /\ \A h \in Handlers : pc[h] = "idle")
NeverCleaned == ~cleaned
=============================================================================
