------------------------------ MODULE KeyStates ------------------------------
\* The key of a direct notification: unlocked, locked, sealed.
\*
\* Modelled: two deliveries of the same message, the key with both its
\* lifetimes, both strategies, a crash at every step, and every result of a
\* call. at_most_once seals before the call; at_least_once locks, calls, and
\* then seals. A sealed key answers "filtered by idempotency", a locked key
\* 409.
\*
\* Left out, and why that is sound:
\* - The call itself: SendingEngine.tla. Here "sent" is a call that reached the
\*   recipient.
\* - Several messages: each has its own key.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Deliveries,  \* deliveries of the message
  NoDelivery,  \* no delivery
  AtLeastOnce, \* the strategy; FALSE: at_most_once
  Errors,      \* the errors of a call: transient, definite
  Crashes,     \* how many crashes there are
  Retries      \* how often a caller may retry after a transient error

CONSTANTS              \* Guards. TRUE in the design; each is FALSE in its own mutant
  SealsFirst,          \* at_most_once: the key is sealed before the call
  SealFilters,         \* a delivery with a sealed key makes no call
  LockExcludes,        \* a delivery with a locked key makes no call
  OwnLockOnly,         \* unlock and seal need the own lock
  LockExpires,         \* a lock expires
  LockOutlivesWork,    \* ... after a time that is longer than any processing
  SealOutlivesRetries, \* the seal lasts longer than deliveries can come
  TransientUnlocks,    \* after a transient error the key is unlocked
  DefiniteSeals        \* after a definite error the key is sealed

VARIABLES
  key,          \* unlocked, locked, sealed
  owner,        \* the delivery that has locked it
  pc,           \* delivery -> new, processing, called, failed, refused, done
  sent,         \* calls that reached the recipient
  calls,        \* calls
  tries,        \* retries left
  crashes,      \* crashes left
  sealLost,     \* history: a crash came between an accepted call and its seal
  refused,      \* history: a carrier has refused permanently
  foreignChange \* history: a delivery changed a key that another had locked

vars == <<key, owner, pc, sent, calls, tries, crashes, sealLost, refused, foreignChange>>

Init ==
  /\ key = "unlocked" /\ owner = NoDelivery /\ pc = [d \in Deliveries |-> "new"]
  /\ sent = 0 /\ calls = 0 /\ tries = Retries /\ crashes = Crashes /\ sealLost = FALSE /\ refused = FALSE /\ foreignChange = FALSE

At(d, where) == pc' = [pc EXCEPT ![d] = where]
Working(d) == pc[d] \in {"processing", "called", "failed", "refused"}
MayChange(d) == owner = d \/ ~OwnLockOnly

\* Lock locks the key, or finds that it is sealed.
Lock(d) ==
  /\ pc[d] = "new"
  /\ \/ /\ key = "sealed" /\ SealFilters /\ At(d, "done") /\ UNCHANGED <<key, owner>>
     \/ /\ key = "unlocked" \/ (key = "locked" /\ ~LockExcludes) \/ (key = "sealed" /\ ~SealFilters)
        /\ key' = IF ~AtLeastOnce /\ SealsFirst THEN "sealed" ELSE "locked"
        /\ owner' = d /\ At(d, "processing")
  /\ UNCHANGED <<sent, calls, tries, crashes, sealLost, refused, foreignChange>>
\* Call: it is accepted, fails (transient) or is refused permanently
\* (definite).
Call(d) ==
  /\ pc[d] = "processing" /\ calls' = calls + 1
  /\ \/ sent' = sent + 1 /\ At(d, "called")
     \/ "transient" \in Errors /\ At(d, "failed") /\ UNCHANGED sent
     \/ "definite" \in Errors /\ At(d, "refused") /\ UNCHANGED sent
  /\ UNCHANGED <<key, owner, tries, crashes, sealLost, refused, foreignChange>>
\* Seal: the message was processed completely.
Seal(d) ==
  /\ pc[d] = "called" /\ At(d, "done")
  /\ key' = IF MayChange(d) THEN "sealed" ELSE key
  /\ foreignChange' = (foreignChange \/ (MayChange(d) /\ owner \notin {d, NoDelivery}))
  /\ UNCHANGED owner
  /\ UNCHANGED <<sent, calls, tries, crashes, sealLost, refused>>
\* Unlock: a transient error unlocks the key, and the caller may retry.
Unlock(d) ==
  /\ pc[d] = "failed"
  /\ key' = IF MayChange(d) THEN (IF TransientUnlocks THEN "unlocked" ELSE "sealed") ELSE key
  /\ foreignChange' = (foreignChange \/ (MayChange(d) /\ owner \notin {d, NoDelivery}))
  /\ UNCHANGED owner
  /\ \/ tries > 0 /\ tries' = tries - 1 /\ At(d, "new")
     \/ tries = 0 /\ UNCHANGED tries /\ At(d, "done")
  /\ UNCHANGED <<sent, calls, crashes, sealLost, refused>>
\* Refuse: a definite error seals the key: the message will never be accepted.
Refuse(d) ==
  /\ pc[d] = "refused" /\ At(d, "done") /\ refused' = TRUE
  /\ key' = IF MayChange(d) THEN (IF DefiniteSeals THEN "sealed" ELSE "unlocked") ELSE key
  /\ foreignChange' = (foreignChange \/ (MayChange(d) /\ owner \notin {d, NoDelivery}))
  /\ UNCHANGED owner
  /\ UNCHANGED <<sent, calls, tries, crashes, sealLost>>
\* Crash: the delivery is repeated, and its knowledge is lost.
Crash(d) ==
  /\ Working(d) /\ crashes > 0 /\ crashes' = crashes - 1 /\ At(d, "new")
  /\ sealLost' = (sealLost \/ pc[d] = "called")
  /\ UNCHANGED <<key, owner, sent, calls, tries, refused, foreignChange>>
\* Expire: the lifetime of a lock or a seal is over.
Expire ==
  /\ \/ key = "locked" /\ LockExpires /\ (LockOutlivesWork => (\A d \in Deliveries : ~(owner = d /\ Working(d))))
     \/ key = "sealed" /\ (SealOutlivesRetries => \A d \in Deliveries : pc[d] = "done")
  /\ key' = "unlocked" /\ owner' = NoDelivery
  /\ UNCHANGED <<pc, sent, calls, tries, crashes, sealLost, refused, foreignChange>>

Next ==
  \/ \E d \in Deliveries : Lock(d)
  \/ \E d \in Deliveries : Call(d)
  \/ \E d \in Deliveries : Seal(d)
  \/ \E d \in Deliveries : Unlock(d)
  \/ \E d \in Deliveries : Refuse(d)
  \/ \E d \in Deliveries : Crash(d)
  \/ Expire
Fairness ==
  /\ WF_vars(Expire)
  /\ \A d \in Deliveries : WF_vars(Lock(d)) /\ WF_vars(Call(d)) /\ WF_vars(Seal(d)) /\ WF_vars(Unlock(d)) /\ WF_vars(Refuse(d))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == key \in {"unlocked", "locked", "sealed"}
\* at_most_once: at most one message.
AtMostOnce == ~AtLeastOnce => sent <= 1
\* at_least_once: at most two messages, as long as at most one seal is lost.
AtMostTwice == Crashes <= 1 => sent <= 2
\* ... and two only if a seal was lost and a duplicate came.
TwiceOnlyIfSealLost == sent > 1 => sealLost
\* A message that a carrier refused permanently is not sent again.
NothingAfterRefusal == refused => sent <= 1
\* One delivery at a time works on a message.
OneAtATime == AtLeastOnce => (Cardinality({d \in Deliveries : Working(d)}) <= 1)
\* at_least_once: a sealed key means that the message was accepted or refused
\* permanently.
SealedMeansSettled == (AtLeastOnce /\ key = "sealed") => (sent > 0 \/ refused)
\* No delivery unlocks or seals a key that another has locked.
OnlyOwnerUnlocks == ~foreignChange
\* No key stays locked.
NoKeyLockedForEver == []<>(key # "locked")

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverTwice == sent < 2
NeverLostSilently == ~(\A d \in Deliveries : pc[d] = "done" /\ sent = 0 /\ ~refused /\ tries > 0)
NeverFiltered == ~(sent = 1 /\ calls = 1 /\ \A d \in Deliveries : pc[d] = "done")
NeverSealExpired == ~(key = "unlocked" /\ \A d \in Deliveries : pc[d] = "done" /\ sent = 1)
=============================================================================
