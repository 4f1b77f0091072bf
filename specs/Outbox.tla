------------------------------- MODULE Outbox --------------------------------
\* A message is handled once and its output is published, whatever fails in
\* between.
\*
\* Modelled: a message that the queue delivers several times, also at once, to
\* two handlers that crash at every step; the database with the change and, in
\* the same transaction, the output to publish; the broker, which may fail (a
\* crash before its step); the cleaner. In Lemma the message is whatever
\* changes a state, and the output is a webhook to a customer.
\*
\* The mutants of PublishesAfterCommit, RetriesUntilDone, Dedupes,
\* PublishesAgain and PublishesStoredOutput are the common mistakes in an
\* outbox, from the plainest on.
\*
\* Left out, and why that is sound: several messages, since no step reads two.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Handlers, \* processes that handle messages
  Copies,   \* how often the queue holds the message
  Crashes   \* how many failures there are; after a failure the message is delivered again

CONSTANTS                \* Guards. TRUE in the design; each is FALSE in its own mutant
  PublishesAfterCommit,  \* nothing is published before the commit
  RetriesUntilDone,      \* a failed message is delivered again until it is acknowledged
  Dedupes,               \* a message that was handled is not handled again
  PublishesAgain,        \* ... but its output is published again
  PublishesStoredOutput, \* the output that is published is the one that was stored with the change
  AcksLast,              \* the message is acknowledged after its output was published
  Cleans,                \* what was published is cleaned up
  CleansLate             \* ... only when no copy can come any more

VARIABLES
  queue,      \* copies that wait
  pc,         \* handler -> idle, got, sent, stored, published
  execution,  \* handler -> the number of its execution
  executions, \* executions so far
  changes,    \* changes in the database: the executions that made them
  handledBy,  \* the execution that marked the message as handled; 0: none
  published,  \* the executions whose output was published
  acked,      \* the message has been acknowledged, or given up
  cleaned,    \* the outbox row is deleted
  crashes     \* failures left

vars == <<queue, pc, execution, executions, changes, handledBy, published, acked, cleaned, crashes>>

Init ==
  /\ queue = Copies /\ pc = [h \in Handlers |-> "idle"] /\ execution = [h \in Handlers |-> 0] /\ executions = 0
  /\ changes = {} /\ handledBy = 0 /\ published = {} /\ acked = FALSE /\ cleaned = FALSE /\ crashes = Crashes

At(h, where) == pc' = [pc EXCEPT ![h] = where]
\* Receive: a handler receives a copy.
Receive(h) ==
  /\ pc[h] = "idle" /\ queue > 0 /\ queue' = queue - 1 /\ At(h, "got")
  /\ executions' = executions + 1 /\ execution' = [execution EXCEPT ![h] = executions + 1]
  /\ UNCHANGED <<changes, handledBy, published, acked, cleaned, crashes>>
\* PublishFirst: publish before the commit (mutant PublishesAfterCommit only).
PublishFirst(h) ==
  /\ ~PublishesAfterCommit /\ pc[h] = "got" /\ At(h, "sent") /\ published' = published \union {execution[h]}
  /\ UNCHANGED <<queue, execution, executions, changes, handledBy, acked, cleaned, crashes>>
\* Update: the change, the mark and the output in one transaction. A message
\* that is marked changes nothing.
Update(h) ==
  /\ pc[h] = IF PublishesAfterCommit THEN "got" ELSE "sent"
  /\ \/ /\ handledBy = 0 \/ ~Dedupes
        /\ changes' = changes \union {execution[h]} /\ handledBy' = execution[h] /\ At(h, "stored")
     \/ /\ handledBy # 0 /\ Dedupes /\ UNCHANGED <<changes, handledBy>>
        /\ At(h, IF PublishesAgain THEN "stored" ELSE "published")
  /\ UNCHANGED <<queue, execution, executions, published, acked, cleaned, crashes>>
\* Publish: the output goes to the broker, perhaps once more.
Publish(h) ==
  /\ pc[h] = "stored" /\ (AcksLast \/ acked)
  /\ published' = IF ~PublishesAfterCommit \/ cleaned THEN published
                  ELSE published \union {IF PublishesStoredOutput THEN handledBy ELSE execution[h]}
  /\ At(h, "published")
  /\ UNCHANGED <<queue, execution, executions, changes, handledBy, acked, cleaned, crashes>>
\* Ack: the queue deletes the copy.
Ack(h) ==
  /\ \/ AcksLast /\ pc[h] = "published" /\ At(h, "idle")
     \/ ~AcksLast /\ pc[h] = "stored" /\ ~acked /\ UNCHANGED pc
     \/ ~AcksLast /\ pc[h] = "published" /\ At(h, "idle")
  /\ acked' = TRUE
  /\ UNCHANGED <<queue, execution, executions, changes, handledBy, published, cleaned, crashes>>
\* Crash: a failure at any step. The copy becomes visible again, unless it was
\* acknowledged.
Crash(h) ==
  /\ pc[h] # "idle" /\ crashes > 0 /\ crashes' = crashes - 1 /\ At(h, "idle")
  /\ queue' = IF RetriesUntilDone /\ (AcksLast \/ ~acked) THEN queue + 1 ELSE queue
  /\ acked' = (acked \/ (~RetriesUntilDone /\ queue = 0))
  /\ UNCHANGED <<execution, executions, changes, handledBy, published, cleaned>>
\* Clean: the outbox row of a published message is deleted, with its mark.
Clean ==
  /\ Cleans /\ handledBy \in published /\ ~cleaned
  /\ CleansLate => (queue = 0 /\ \A h \in Handlers : pc[h] = "idle")
  /\ cleaned' = TRUE /\ handledBy' = 0
  /\ UNCHANGED <<queue, pc, execution, executions, changes, published, acked, crashes>>

Next ==
  \/ \E h \in Handlers : Receive(h)
  \/ \E h \in Handlers : PublishFirst(h)
  \/ \E h \in Handlers : Update(h)
  \/ \E h \in Handlers : Publish(h)
  \/ \E h \in Handlers : Ack(h)
  \/ \E h \in Handlers : Crash(h)
  \/ Clean
Fairness ==
  /\ WF_vars(\E g \in Handlers : Receive(g)) /\ WF_vars(Clean)
  /\ \A h \in Handlers : WF_vars(Update(h)) /\ WF_vars(Publish(h)) /\ WF_vars(Ack(h))
Spec == Init /\ [][Next]_vars /\ Fairness

AllDone == acked /\ queue = 0 /\ \A h \in Handlers : pc[h] = "idle"
-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == executions \in Nat /\ changes \subseteq 1..executions /\ published \subseteq 1..executions
\* An output is published only after its change.
NoMessageWithoutChange == published # {} => changes # {}
\* The output of every change is published before the message is done.
NoLostMessages == (AllDone /\ changes # {}) => published # {}
\* A message changes the state once.
NoDuplicatedProcessing == Cardinality(changes) <= 1
\* All that is published for a message is the output of one execution, the
\* stored one.
ConsistentOutput == Cardinality(published) <= 1
\* In the end it is published and cleaned up.
PublishedAndCleaned == <>(published # {} /\ cleaned)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverTwoAtOnce == ~\A h \in Handlers : pc[h] = "got"
NeverPublishedAgain == ~\E h \in Handlers : pc[h] = "stored" /\ published # {} /\ handledBy # execution[h]
NeverCrashedBetween == ~(crashes < Crashes /\ changes # {} /\ published = {} /\ \A h \in Handlers : pc[h] = "idle")
NeverCleaned == ~cleaned
=============================================================================
