------------------------------ MODULE KeyStates ------------------------------
\* The key of a direct notification: unlocked, locked, sealed.
\*
\* Modelled: two deliveries of the same message, the key with both its times to
\* live, both strategies, a crash at every step, and what a call may come to.
\* at_most_once seals first and calls then; at_least_once locks, calls, seals.
\* A key that is sealed answers "filtered by idempotency", one that is locked 409.
\*
\* Left out, and why that is sound:
\* - What the call itself can do: SendingEngine.tla. Here "sent" is a call that
\*   reached the recipient.
\* - Several messages: each has a key of its own.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Deliveries,
  NoOne,
  AtLeastOnce,        \* the strategy; FALSE: at_most_once
  Errors,             \* what a call may come to besides success: transient, definite
  Crashes,
  Retries             \* how often a caller may try again after a transient error

CONSTANTS             \* Guards. TRUE in the design; each is FALSE in its own mutant
  SealsFirst,         \* at_most_once: the key is sealed before the call
  SealFilters,        \* a sealed key lets nobody through
  LockExcludes,       \* a locked key lets nobody through
  OwnLockOnly,        \* unlock and seal need the lock to be one's own
  LockExpires,        \* a lock has a time to live
  LockOutlivesWork,   \* ... that is longer than any processing
  SealOutlivesRetries,\* the seal lives longer than any delivery can come
  TransientUnlocks,   \* after a transient error the key is free again
  DefiniteSeals       \* after a definite error it is sealed

VARIABLES
  key,      \* unlocked, locked, sealed
  owner,    \* who has locked it
  pc,       \* delivery -> new, have, called, failed, refused, done
  sent,     \* calls that reached the recipient
  calls,    \* calls
  tries,    \* retries left
  crashes,  \* crashes left
  sealLost, \* history: a crash came between a call that was taken and its seal
  wasted,   \* history: a carrier has refused for good
  robbed    \* history: somebody changed a key that another had locked

vars == <<key, owner, pc, sent, calls, tries, crashes, sealLost, wasted, robbed>>

Init ==
  /\ key = "unlocked" /\ owner = NoOne /\ pc = [d \in Deliveries |-> "new"]
  /\ sent = 0 /\ calls = 0 /\ tries = Retries /\ crashes = Crashes /\ sealLost = FALSE /\ wasted = FALSE /\ robbed = FALSE

At(d, where) == pc' = [pc EXCEPT ![d] = where]
Working(d) == pc[d] \in {"have", "called", "failed", "refused"}
Mine(d) == owner = d \/ ~OwnLockOnly

\* Lock takes the key, or finds that it may not.
Lock(d) ==
  /\ pc[d] = "new"
  /\ \/ /\ key = "sealed" /\ SealFilters /\ At(d, "done") /\ UNCHANGED <<key, owner>>
     \/ /\ key = "unlocked" \/ (key = "locked" /\ ~LockExcludes) \/ (key = "sealed" /\ ~SealFilters)
        /\ key' = IF ~AtLeastOnce /\ SealsFirst THEN "sealed" ELSE "locked"
        /\ owner' = d /\ At(d, "have")
  /\ UNCHANGED <<sent, calls, tries, crashes, sealLost, wasted, robbed>>
\* Call: it is taken, put off (transient) or refused for good (definite).
Call(d) ==
  /\ pc[d] = "have" /\ calls' = calls + 1
  /\ \/ sent' = sent + 1 /\ At(d, "called")
     \/ "transient" \in Errors /\ At(d, "failed") /\ UNCHANGED sent
     \/ "definite" \in Errors /\ At(d, "refused") /\ UNCHANGED sent
  /\ UNCHANGED <<key, owner, tries, crashes, sealLost, wasted, robbed>>
\* Seal: the sending was completely processed.
Seal(d) ==
  /\ pc[d] = "called" /\ At(d, "done")
  /\ key' = IF Mine(d) THEN "sealed" ELSE key
  /\ robbed' = (robbed \/ (Mine(d) /\ owner \notin {d, NoOne}))
  /\ UNCHANGED owner
  /\ UNCHANGED <<sent, calls, tries, crashes, sealLost, wasted>>
\* Unlock: a transient error frees the key, and the caller may come again.
Unlock(d) ==
  /\ pc[d] = "failed"
  /\ key' = IF Mine(d) THEN (IF TransientUnlocks THEN "unlocked" ELSE "sealed") ELSE key
  /\ robbed' = (robbed \/ (Mine(d) /\ owner \notin {d, NoOne}))
  /\ UNCHANGED owner
  /\ \/ tries > 0 /\ tries' = tries - 1 /\ At(d, "new")
     \/ tries = 0 /\ UNCHANGED tries /\ At(d, "done")
  /\ UNCHANGED <<sent, calls, crashes, sealLost, wasted>>
\* Refuse: a definite error seals the key: the message will never be taken.
Refuse(d) ==
  /\ pc[d] = "refused" /\ At(d, "done") /\ wasted' = TRUE
  /\ key' = IF Mine(d) THEN (IF DefiniteSeals THEN "sealed" ELSE "unlocked") ELSE key
  /\ robbed' = (robbed \/ (Mine(d) /\ owner \notin {d, NoOne}))
  /\ UNCHANGED owner
  /\ UNCHANGED <<sent, calls, tries, crashes, sealLost>>
\* Crash: the delivery comes again, and has forgotten everything.
Crash(d) ==
  /\ Working(d) /\ crashes > 0 /\ crashes' = crashes - 1 /\ At(d, "new")
  /\ sealLost' = (sealLost \/ pc[d] = "called")
  /\ UNCHANGED <<key, owner, sent, calls, tries, wasted, robbed>>
\* Expire: a time to live is over.
Expire ==
  /\ \/ key = "locked" /\ LockExpires /\ (LockOutlivesWork => (\A d \in Deliveries : ~(owner = d /\ Working(d))))
     \/ key = "sealed" /\ (SealOutlivesRetries => \A d \in Deliveries : pc[d] = "done")
  /\ key' = "unlocked" /\ owner' = NoOne
  /\ UNCHANGED <<pc, sent, calls, tries, crashes, sealLost, wasted, robbed>>

Next ==
  \/ \E d \in Deliveries : Lock(d)
  \/ \E d \in Deliveries : Call(d)
  \/ \E d \in Deliveries : Seal(d)
  \/ \E d \in Deliveries : Unlock(d)
  \/ \E d \in Deliveries : Refuse(d)
  \/ \E d \in Deliveries : Crash(d)
  \/ Expire
Fairness == WF_vars(Expire) /\ \A d \in Deliveries : WF_vars(Lock(d)) /\ WF_vars(Call(d)) /\ WF_vars(Seal(d)) /\ WF_vars(Unlock(d)) /\ WF_vars(Refuse(d))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == key \in {"unlocked", "locked", "sealed"}
\* at_most_once: one message at most.
AtMostOnce == ~AtLeastOnce => sent <= 1
\* at_least_once: two at most, as long as one seal at most is lost.
AtMostTwice == Crashes <= 1 => sent <= 2
\* ... and two only when a seal was lost and a duplicate came.
TwiceOnlyIfSealLost == sent > 1 => sealLost
\* What a carrier refused for good is not sent again.
NothingAfterRefusal == wasted => sent <= 1
\* One delivery at a time works on a message.
OneAtATime == AtLeastOnce => (Cardinality({d \in Deliveries : Working(d)}) <= 1)
\* at_least_once: a sealed key means that the message was taken or refused for good.
SealedMeansSettled == (AtLeastOnce /\ key = "sealed") => (sent > 0 \/ wasted)
\* Nobody frees or seals a key that another has locked.
OnlyOwnerUnlocks == ~robbed
\* No key is locked for ever.
NoKeyLockedForEver == []<>(key # "locked")

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverTwice == sent < 2
NeverLostSilently == ~(\A d \in Deliveries : pc[d] = "done" /\ sent = 0 /\ ~wasted /\ tries > 0)
NeverFiltered == ~(sent = 1 /\ calls = 1 /\ \A d \in Deliveries : pc[d] = "done")
NeverSealExpired == ~(key = "unlocked" /\ \A d \in Deliveries : pc[d] = "done" /\ sent = 1)
=============================================================================
