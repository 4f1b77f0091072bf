--------------------------- MODULE ProviderEvents ----------------------------
\* Events of carriers: webhooks that come twice, out of order, too early, or
\* from a forger.
\*
\* Modelled: three genuine events of one notification with the ranks 1 to 3, an
\* event without an id that comes several times, a forger, a carrier that
\* repeats an event until it is acknowledged and sometimes beyond, two
\* ingesters that crash, and a notification that may become visible only after
\* its first events.
\*
\* Left out, and why that is sound:
\* - Several notifications: an event names one, and nothing joins two of them.
\* - The check of a signature: a test with each carrier's own vectors.
\* - The early exit for a known id: it saves work and decides nothing.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Ingesters, \* processes that receive webhooks
  Events,    \* genuine events of rank 1, 2 and 3, by their ids: "e1", "e2", "e3"
  Unknowns,  \* how often the event without an id comes
  Repeats,   \* how often a carrier repeats an acknowledged event
  Crashes    \* how many crashes there are

CONSTANTS          \* Guards. TRUE in the design; each is FALSE in its own mutant
  OnceIndex,       \* provider_events_once: one row per (source, id)
  UnknownExempt,   \* ... which leaves out events without an id
  ByRank,          \* the delivery status only rises
  ChecksSignature, \* a webhook without the right signature is refused
  KeepsEarly,      \* an event is kept although its notification is not visible yet
  AcksAfterCommit  \* the carrier is answered after the event is stored

VARIABLES
  visible,         \* the notification is visible
  unacked,         \* events that the carrier will send again
  repeats,         \* repetitions left
  forgeryLeft,     \* the forger has not tried yet
  unknownLeft,     \* events without an id that are still to come
  pc,              \* ingester -> idle, got
  holds,           \* ingester -> the id of the event that it has, "forged" or "unknown"
  stored,          \* id -> rows in provider_events
  applied,         \* id -> how often the event was applied to the delivery status
  rank,            \* the delivery status, as a rank
  crashes,         \* crashes left
  receivedUnknown, \* history: events without an id that were received and acknowledged
  wentBack         \* history: the delivery status has gone back

vars == <<visible, unacked, repeats, forgeryLeft, unknownLeft, pc, holds, stored, applied, rank, crashes, receivedUnknown, wentBack>>

Ids == Events \union {"forged", "unknown"}
Rank(e) == CASE e = "e1" -> 1 [] e = "e2" -> 2 [] e = "e3" -> 3 [] OTHER -> 0
Init ==
  /\ visible = FALSE /\ unacked = Events /\ repeats = Repeats /\ forgeryLeft = TRUE /\ unknownLeft = Unknowns
  /\ pc = [i \in Ingesters |-> "idle"] /\ holds = [i \in Ingesters |-> "none"]
  /\ stored = [e \in Ids |-> 0] /\ applied = [e \in Ids |-> 0] /\ rank = 0 /\ crashes = Crashes /\ receivedUnknown = 0 /\ wentBack = FALSE

Receives(i, e) == pc[i] = "idle" /\ pc' = [pc EXCEPT ![i] = "got"] /\ holds' = [holds EXCEPT ![i] = e]
Idle(i) == pc' = [pc EXCEPT ![i] = "idle"] /\ holds' = [holds EXCEPT ![i] = "none"]

\* Appear: Lemma's own commit makes the notification visible.
Appear == ~visible /\ visible' = TRUE /\ UNCHANGED <<unacked, repeats, forgeryLeft, unknownLeft, pc, holds, stored, applied, rank,
                                                     crashes, receivedUnknown, wentBack>>
\* Receive: a genuine event, in any order, until it is acknowledged.
Receive(i, e) ==
  /\ e \in unacked /\ Receives(i, e)
  /\ unacked' = IF AcksAfterCommit THEN unacked ELSE unacked \ {e}
  /\ UNCHANGED <<visible, repeats, forgeryLeft, unknownLeft, stored, applied, rank, crashes, receivedUnknown, wentBack>>
\* Repeat: an acknowledged event once more.
Repeat(i, e) ==
  /\ e \notin unacked /\ repeats > 0 /\ repeats' = repeats - 1 /\ Receives(i, e)
  /\ UNCHANGED <<visible, unacked, forgeryLeft, unknownLeft, stored, applied, rank, crashes, receivedUnknown, wentBack>>
\* ReceiveUnknown: an event without an id.
ReceiveUnknown(i) ==
  /\ unknownLeft > 0 /\ unknownLeft' = unknownLeft - 1 /\ Receives(i, "unknown")
  /\ UNCHANGED <<visible, unacked, repeats, forgeryLeft, stored, applied, rank, crashes, receivedUnknown, wentBack>>
\* Forge: a forged event; without the right signature it is refused.
Forge(i) ==
  /\ forgeryLeft /\ forgeryLeft' = FALSE /\ ~ChecksSignature /\ Receives(i, "forged")
  /\ UNCHANGED <<visible, unacked, repeats, unknownLeft, stored, applied, rank, crashes, receivedUnknown, wentBack>>

\* Record stores an event, once, and answers the carrier.
Record(i) ==
  /\ pc[i] = "got" /\ Idle(i)
  /\ \E e \in {holds[i]} :
       /\ \E keep \in {/\ KeepsEarly \/ visible
                       /\ \/ ~OnceIndex \/ stored[e] = 0 \/ (e = "unknown" /\ UnknownExempt)} :
            stored' = IF keep THEN [stored EXCEPT ![e] = @ + 1] ELSE stored
       /\ unacked' = unacked \ {e}
       /\ receivedUnknown' = IF e = "unknown" THEN receivedUnknown + 1 ELSE receivedUnknown
  /\ UNCHANGED <<visible, repeats, forgeryLeft, unknownLeft, applied, rank, crashes, wentBack>>
\* Crash ends an ingester before its commit: the carrier gets no answer.
Crash(i) ==
  /\ pc[i] # "idle" /\ holds[i] # "unknown" /\ crashes > 0 /\ crashes' = crashes - 1 /\ Idle(i)
  /\ UNCHANGED <<visible, unacked, repeats, forgeryLeft, unknownLeft, stored, applied, rank, receivedUnknown, wentBack>>
\* Apply applies a stored event to the delivery status.
Apply(e) ==
  /\ visible /\ applied[e] < stored[e] /\ applied' = [applied EXCEPT ![e] = @ + 1]
  /\ rank' = IF ByRank THEN (IF Rank(e) > rank THEN Rank(e) ELSE rank) ELSE Rank(e)
  /\ wentBack' = (wentBack \/ (~ByRank /\ Rank(e) < rank))
  /\ UNCHANGED <<visible, unacked, repeats, forgeryLeft, unknownLeft, pc, holds, stored, crashes, receivedUnknown>>

Next ==
  \/ Appear
  \/ \E i \in Ingesters : \E e \in Events : Receive(i, e)
  \/ \E i \in Ingesters : \E e \in Events : Repeat(i, e)
  \/ \E i \in Ingesters : ReceiveUnknown(i)
  \/ \E i \in Ingesters : Forge(i)
  \/ \E i \in Ingesters : Record(i)
  \/ \E i \in Ingesters : Crash(i)
  \/ \E e \in Ids : Apply(e)
Fairness ==
  /\ WF_vars(Appear) /\ \A i \in Ingesters : WF_vars(Record(i))
  /\ \A e \in Events : SF_vars(\E j \in Ingesters : Receive(j, e))
  /\ \A e \in Ids : WF_vars(Apply(e))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == \A e \in Ids : applied[e] <= stored[e]
\* An event with an id is applied once, however often it comes.
AppliedOnce == \A e \in Events : applied[e] <= 1
\* The delivery status never goes back.
RankOnlyRises == ~wentBack
\* A forged event has no effect.
ForgedChangesNothing == stored["forged"] = 0
\* Every event without an id is kept.
UnknownAllKept == stored["unknown"] = receivedUnknown
\* Every genuine event is applied in the end, also one that came too early.
EveryEventApplied == <>(\A e \in Events : applied[e] >= 1)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverEarly == ~(~visible /\ \E e \in Events : stored[e] > 0)
NeverReordered == ~(applied["e1"] = 1 /\ rank = 2)
NeverTwiceAtOnce == ~\E e \in Events : \A i \in Ingesters : holds[i] = e
NeverTwoUnknown == stored["unknown"] < 2
=============================================================================
