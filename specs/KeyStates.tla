------------------------------ MODULE KeyStates ------------------------------
\* The key of a direct notification: unlocked, locked, sealed.
\*
\* Modelled: several deliveries of one request (a client repeats it, or a queue
\* delivers it twice), a crash at every step of them, both strategies, both
\* lifetimes, and a notification that waits (for its time or its provider) and is
\* then called, with every result of a call. The state of the key is derived from
\* its row (the owner) and from the owner's notification: a lock lasts until its
\* notification has ended, and nothing is written to seal it.
\*
\* Left out, and why that is sound:
\* - How attempts are counted, and the evidence about them: SendingEngine.tla. Here
\*   a second attempt follows an unknown one under at_least_once.
\* - Several keys: each has its own row. Several periods: a key has one row in all
\*   of them (direct_keys_pkey, and the lock of the current period).
EXTENDS Naturals, FiniteSets

CONSTANTS
  Deliveries,  \* deliveries of the request
  NoDelivery,  \* no delivery
  AtLeastOnce, \* the strategy; FALSE: at_most_once
  Results,     \* of calls: accepted, transient, definite, unknown
  Crashes      \* how many crashes there are

CONSTANTS              \* Guards. TRUE in the design; each is FALSE in its own mutant
  SealsFirst,          \* at_most_once: the key is sealed before the call
  SealFilters,         \* a delivery with a sealed key stores nothing
  LockExcludes,        \* a delivery with a locked key stores nothing
  StoreIsFenced,       \* a delivery stores under its own lock only
  LockExpires,         \* the lock of a delivery that has stored nothing expires
  LockFollows,         \* ... and that of a stored notification lasts until it has ended
  SealOutlivesDeliveries, \* the seal lasts longer than deliveries can come
  TransientUnlocks,    \* a notification that failed for a cause that may pass unlocks its key
  DefiniteSeals,       \* one that was refused permanently seals it
  UnknownSeals         \* one whose outcome stays unknown seals it

VARIABLES
  owner,    \* the delivery whose token the row has
  gone,     \* the lifetime of the owner's lock or seal is over
  pc,       \* delivery -> new, locked, done
  state,    \* delivery -> its notification: none, waiting, sent, failed, refused, orphaned
  attempts, \* delivery -> attempts of its notification
  sent,     \* calls that reached the recipient
  crashes,  \* crashes left
  unknown,  \* history: an outcome was unknown
  refused,  \* history: a carrier has refused permanently
  late,     \* history: a call was made after that
  foreign   \* history: a delivery stored under the lock of another

vars == <<owner, gone, pc, state, attempts, sent, crashes, unknown, refused, late, foreign>>

Init ==
  /\ owner = NoDelivery /\ gone = FALSE /\ pc = [d \in Deliveries |-> "new"]
  /\ state = [d \in Deliveries |-> "none"] /\ attempts = [d \in Deliveries |-> 0]
  /\ sent = 0 /\ crashes = Crashes /\ unknown = FALSE /\ refused = FALSE /\ late = FALSE /\ foreign = FALSE

\* Derived is the state of a key with an owner.
Derived(d) ==
  IF state[d] = "none" THEN (IF gone THEN "unlocked" ELSE "locked")
  ELSE IF state[d] = "waiting" THEN
    (IF gone /\ ~LockFollows THEN "unlocked" ELSE IF AtLeastOnce THEN "locked" ELSE IF SealsFirst THEN "sealed" ELSE "unlocked")
  ELSE IF gone THEN "unlocked"
  ELSE IF state[d] = "failed" THEN (IF TransientUnlocks THEN "unlocked" ELSE "sealed")
  ELSE IF state[d] = "refused" THEN (IF DefiniteSeals THEN "sealed" ELSE "unlocked")
  ELSE IF state[d] = "orphaned" THEN (IF UnknownSeals THEN "sealed" ELSE "unlocked")
  ELSE "sealed"
Key == IF owner = NoDelivery THEN "unlocked" ELSE Derived(owner)
Free == Key = "unlocked" \/ (Key = "locked" /\ ~LockExcludes) \/ (Key = "sealed" /\ ~SealFilters)

\* Lock acquires the key with a fresh token, or finds that it is sealed.
Lock(d) ==
  /\ pc[d] = "new" /\ state[d] = "none"
  /\ \/ /\ Key = "sealed" /\ SealFilters /\ pc' = [pc EXCEPT ![d] = "done"] /\ UNCHANGED <<owner, gone>>
     \/ /\ Free /\ owner' = d /\ gone' = FALSE /\ pc' = [pc EXCEPT ![d] = "locked"]
  /\ UNCHANGED <<state, attempts, sent, crashes, unknown, refused, late, foreign>>
\* Store stores the notification, and with it the lock, in one transaction.
\* Without the lock nothing is stored.
Store(d) ==
  /\ pc[d] = "locked" /\ state[d] = "none"
  /\ LET own == owner = d /\ ~gone IN
     /\ pc' = [pc EXCEPT ![d] = IF own \/ ~StoreIsFenced THEN "done" ELSE "new"]
     /\ state' = [state EXCEPT ![d] = IF own \/ ~StoreIsFenced THEN "waiting" ELSE "none"]
     /\ foreign' = (foreign \/ (~own /\ ~StoreIsFenced))
  /\ UNCHANGED <<owner, gone, attempts, sent, crashes, unknown, refused, late>>
\* Unlock: the recipient cannot be read, so that nothing is stored.
Unlock(d) ==
  /\ pc[d] = "locked" /\ state[d] = "none" /\ pc' = [pc EXCEPT ![d] = "done"]
  /\ gone' = (gone \/ owner = d)
  /\ UNCHANGED <<owner, state, attempts, sent, crashes, unknown, refused, late, foreign>>
\* Crash: the delivery is repeated, and its knowledge is lost. A notification
\* that is stored stays.
Crash(d) ==
  /\ pc[d] = "locked" /\ crashes > 0 /\ crashes' = crashes - 1 /\ pc' = [pc EXCEPT ![d] = "new"]
  /\ UNCHANGED <<owner, gone, state, attempts, sent, unknown, refused, late, foreign>>
\* Call calls a notification, at some time.
Call(d, result) ==
  /\ state[d] = "waiting" /\ result \in Results /\ attempts' = [attempts EXCEPT ![d] = @ + 1]
  /\ late' = (late \/ refused)
  /\ \/ result = "accepted" /\ sent' = sent + 1 /\ state' = [state EXCEPT ![d] = "sent"] /\ UNCHANGED <<unknown, refused>>
     \/ /\ result = "transient" /\ UNCHANGED <<sent, unknown, refused>>
        /\ state' = [state EXCEPT ![d] = IF attempts[d] = 0 THEN "failed" ELSE "orphaned"]
     \/ /\ result = "definite" /\ refused' = TRUE /\ UNCHANGED <<sent, unknown>>
        /\ state' = [state EXCEPT ![d] = IF attempts[d] = 0 THEN "refused" ELSE "orphaned"]
     \/ /\ result = "unknown" /\ unknown' = TRUE /\ UNCHANGED refused /\ sent' \in {sent, sent + 1}
        /\ state' = [state EXCEPT ![d] = IF AtLeastOnce /\ attempts[d] = 0 THEN "waiting" ELSE "orphaned"]
  /\ UNCHANGED <<owner, gone, pc, crashes, foreign>>
\* Expire: the lifetime of a lock or a seal is over.
Expire ==
  /\ owner # NoDelivery /\ ~gone
  /\ \/ state[owner] = "none" /\ LockExpires
     \/ state[owner] = "waiting" /\ ~LockFollows
     \/ state[owner] \notin {"none", "waiting"} /\ (SealOutlivesDeliveries => \A d \in Deliveries : pc[d] = "done")
  /\ gone' = TRUE
  /\ UNCHANGED <<owner, pc, state, attempts, sent, crashes, unknown, refused, late, foreign>>

Next ==
  \/ \E d \in Deliveries : Lock(d)
  \/ \E d \in Deliveries : Store(d)
  \/ \E d \in Deliveries : Unlock(d)
  \/ \E d \in Deliveries : Crash(d)
  \/ \E d \in Deliveries : \E result \in Results : Call(d, result)
  \/ Expire
Fairness ==
  /\ WF_vars(Expire)
  /\ \A d \in Deliveries : WF_vars(Lock(d)) /\ WF_vars(Store(d)) /\ WF_vars(\E result \in Results : Call(d, result))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == owner \in Deliveries \cup {NoDelivery} /\ Key \in {"unlocked", "locked", "sealed"}
\* at_most_once: at most one message.
AtMostOnce == ~AtLeastOnce => sent <= 1
\* at_least_once: at most two messages.
AtMostTwice == sent <= 2
\* ... and two only if the outcome of a call was unknown.
TwiceOnlyIfUnknown == sent > 1 => unknown
\* A message that a carrier refused permanently is not called again.
NothingAfterRefusal == ~late
\* One notification of a key is on its way at a time.
OneAtATime == Cardinality({d \in Deliveries : state[d] = "waiting"}) <= 1
\* A notification that waits, however long, keeps its key.
WaitingKeepsKey == \A d \in Deliveries : state[d] = "waiting" => (owner = d /\ Key # "unlocked")
\* at_least_once: a sealed key means that its notification has ended, and not for
\* a cause that may pass.
SealedMeansSettled == (AtLeastOnce /\ Key = "sealed") => state[owner] \in {"sent", "refused", "orphaned"}
\* No delivery stores under a lock that it has lost.
OnlyOwnerStores == ~foreign
\* No key stays locked.
NoKeyLockedForEver == []<>(Key # "locked")

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverTwice == sent < 2
NeverLostVisibly == ~(~AtLeastOnce /\ sent = 0 /\ unknown)
NeverFiltered == ~(sent = 1 /\ \A d \in Deliveries : pc[d] = "done" /\ (state[d] = "none" => owner # d))
NeverSealExpired == ~(Key = "unlocked" /\ sent = 1 /\ \A d \in Deliveries : pc[d] = "done")
NeverLockLost == ~(\E d \in Deliveries : pc[d] = "locked" /\ owner # d)
=============================================================================
