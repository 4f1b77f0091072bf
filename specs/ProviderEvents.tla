--------------------------- MODULE ProviderEvents ----------------------------
\* What carriers say later: webhooks that come twice, out of order, too early, or
\* from somebody else.
\*
\* Modelled: three genuine events of one notification with the ranks 1 to 3, an
\* event without an id that comes several times, a forger, a carrier that repeats
\* until it is acknowledged and sometimes beyond, two ingesters that crash, and a
\* notification that may become visible only after its first events.
\*
\* Left out, and why that is sound:
\* - Several notifications: an event names one, and nothing joins two of them.
\* - How a signature is checked: a test with each carrier's own vectors.
\* - The early exit for a known id: it saves work and decides nothing.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Ingesters,
  Events,           \* genuine events of rank 1, 2 and 3, by their ids: "e1", "e2", "e3"
  Unknowns,         \* how often the event without an id comes
  Repeats,          \* how often a carrier repeats what was acknowledged
  Crashes

CONSTANTS           \* Guards. TRUE in the design; each is FALSE in its own mutant
  OnceIndex,        \* provider_events_once: one row per (source, id)
  UnknownOutside,   \* ... from which events without an id are exempt
  ByRank,           \* the delivery state only rises
  ChecksSignature,  \* a webhook without the right signature is refused
  KeepsEarly,       \* an event is kept although nobody knows its notification yet
  AcksAfterCommit   \* the carrier is answered after the event is stored

VARIABLES
  known,    \* the notification is visible
  unacked,  \* events that the carrier will send again
  repeats,  \* repetitions left
  forged,   \* the forger has not tried yet
  blanks,   \* events without an id that are still to come
  pc,       \* ingester -> idle, got
  has,      \* ingester -> what it holds: the id of an event, "forged" or "unknown"
  stored,   \* id -> rows in provider_events
  applied,  \* id -> how often the delivery state was told
  state,    \* the delivery state, as a rank
  crashes,  \* crashes left
  taken,    \* history: events without an id that were received and acknowledged
  fell      \* history: the delivery state has gone back

vars == <<known, unacked, repeats, forged, blanks, pc, has, stored, applied, state, crashes, taken, fell>>

Ids == Events \union {"forged", "unknown"}
Rank(e) == CASE e = "e1" -> 1 [] e = "e2" -> 2 [] e = "e3" -> 3 [] OTHER -> 0
Init ==
  /\ known = FALSE /\ unacked = Events /\ repeats = Repeats /\ forged = TRUE /\ blanks = Unknowns
  /\ pc = [i \in Ingesters |-> "idle"] /\ has = [i \in Ingesters |-> "none"]
  /\ stored = [e \in Ids |-> 0] /\ applied = [e \in Ids |-> 0] /\ state = 0 /\ crashes = Crashes /\ taken = 0 /\ fell = FALSE

Takes(i, e) == pc[i] = "idle" /\ pc' = [pc EXCEPT ![i] = "got"] /\ has' = [has EXCEPT ![i] = e]
Idle(i) == pc' = [pc EXCEPT ![i] = "idle"] /\ has' = [has EXCEPT ![i] = "none"]

\* Appear: our own commit makes the notification visible.
Appear == ~known /\ known' = TRUE /\ UNCHANGED <<unacked, repeats, forged, blanks, pc, has, stored, applied, state, crashes, taken, fell>>
\* Receive: a genuine event, in any order, until it is acknowledged.
Receive(i, e) ==
  /\ e \in unacked /\ Takes(i, e)
  /\ unacked' = IF AcksAfterCommit THEN unacked ELSE unacked \ {e}
  /\ UNCHANGED <<known, repeats, forged, blanks, stored, applied, state, crashes, taken, fell>>
\* Repeat: an acknowledged event once more.
Repeat(i, e) ==
  /\ e \notin unacked /\ repeats > 0 /\ repeats' = repeats - 1 /\ Takes(i, e)
  /\ UNCHANGED <<known, unacked, forged, blanks, stored, applied, state, crashes, taken, fell>>
\* Blank: an event without an id of its own.
Blank(i) ==
  /\ blanks > 0 /\ blanks' = blanks - 1 /\ Takes(i, "unknown")
  /\ UNCHANGED <<known, unacked, repeats, forged, stored, applied, state, crashes, taken, fell>>
\* Forge: somebody else's event; without the right signature it goes no further.
Forge(i) ==
  /\ forged /\ forged' = FALSE /\ ~ChecksSignature /\ Takes(i, "forged")
  /\ UNCHANGED <<known, unacked, repeats, blanks, stored, applied, state, crashes, taken, fell>>

\* Record stores an event, once, and answers the carrier.
Record(i) ==
  /\ pc[i] = "got" /\ Idle(i)
  /\ \E e \in {has[i]} :
       /\ \E keep \in {/\ KeepsEarly \/ known
                       /\ \/ ~OnceIndex \/ stored[e] = 0 \/ (e = "unknown" /\ UnknownOutside)} :
            stored' = IF keep THEN [stored EXCEPT ![e] = @ + 1] ELSE stored
       /\ unacked' = unacked \ {e}
       /\ taken' = IF e = "unknown" THEN taken + 1 ELSE taken
  /\ UNCHANGED <<known, repeats, forged, blanks, applied, state, crashes, fell>>
\* Crash ends an ingester before its commit: the carrier has no answer.
Crash(i) ==
  /\ pc[i] # "idle" /\ has[i] # "unknown" /\ crashes > 0 /\ crashes' = crashes - 1 /\ Idle(i)
  /\ UNCHANGED <<known, unacked, repeats, forged, blanks, stored, applied, state, taken, fell>>
\* Apply tells the delivery state what a stored event says.
Apply(e) ==
  /\ known /\ applied[e] < stored[e] /\ applied' = [applied EXCEPT ![e] = @ + 1]
  /\ state' = IF ByRank THEN (IF Rank(e) > state THEN Rank(e) ELSE state) ELSE Rank(e)
  /\ fell' = (fell \/ (~ByRank /\ Rank(e) < state))
  /\ UNCHANGED <<known, unacked, repeats, forged, blanks, pc, has, stored, crashes, taken>>

Next ==
  \/ Appear
  \/ \E i \in Ingesters : \E e \in Events : Receive(i, e)
  \/ \E i \in Ingesters : \E e \in Events : Repeat(i, e)
  \/ \E i \in Ingesters : Blank(i)
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
\* An event with an id counts once, however often it comes.
AppliedOnce == \A e \in Events : applied[e] <= 1
\* The delivery state never goes back.
NeverBack == ~fell
\* A forged event changes nothing.
ForgedChangesNothing == stored["forged"] = 0
\* Events without an id are all kept.
UnknownAllKept == stored["unknown"] = taken
\* Every genuine event is applied in the end, also one that came too early.
EveryEventApplied == <>(\A e \in Events : applied[e] >= 1)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverEarly == ~(~known /\ \E e \in Events : stored[e] > 0)
NeverReordered == ~(applied["e1"] = 1 /\ state = 2)
NeverTwiceInHand == ~\E e \in Events : \A i \in Ingesters : has[i] = e
NeverTwoUnknown == stored["unknown"] < 2
=============================================================================
