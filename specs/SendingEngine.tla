---------------------------- MODULE SendingEngine ----------------------------
\* One notification and its carrier: how often can the message arrive, and is
\* the notification's status true?
\*
\* Modelled: the batch row with its lease (a batch of one notification is
\* enough here; Batch.tla has several), the ledger of attempts, the evidence
\* that carriers report later, workers that crash at every step, hang in a call
\* or continue after their lease has expired, the reaper, lost jobs, and a
\* carrier that accepts, rejects, defers, answers late or not at all. One
\* action is one function of the code and at most one transaction; Send is the
\* call itself.
\*
\* Left out, and why that is sound:
\* - Time. A lease is live or expired, an event is visible or not. The order of
\*   two events is left open, so every timing is among the behaviours.
\* - Gates, deadlines and several rows: Batch.tla and Campaign.tla. They only
\*   remove calls.
\* - Content. Both attempts send the same bytes; a test checks that.
\* - In the code every claim has a new token. Here a token is the name of the
\*   claim (an element of Workers) and is reused only after that claim has
\*   ended, so no two live claims share a token.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers,        \* claims that can be alive at the same time
  Node,           \* the process in which all claims run; a token in one mutant only
  NoToken,        \* no token: leased_by is null
  MaxAttempts,    \* 1: at_most_once, 2: at_least_once
  Answers,        \* what the carrier may answer: accepted, rejected, deferred
  MaxDeferrals,   \* how often a message is deferred before it ends as refused
  Faults,         \* how many crashes, early expiries and lost jobs there are ...
  UnlimitedFaults \* ... TRUE: any number

CONSTANTS              \* Faults. Each of the first four is one of the four assumptions, dropped
  HolderOutlivesLease, \* (a) a lease may expire while its holder is calling
  LateAccept,          \* (b) the carrier may accept a request after the client gave up on it
  EventsLost,          \* (c) an event of the carrier may be lost
  EventsTooLate,       \* (d) an event may arrive after the reaper has stopped waiting for it
  JobsLost             \* the job of a batch may be lost

CONSTANTS                        \* Guards. TRUE in the design; each is FALSE in its own mutant
  ClaimIsCas,                    \* Claim leases only a batch that is ready
  FreshToken,                    \* a token names the claim, not the process
  OpenIsFenced,                  \* Open needs the token
  WriteAhead,                    \* Open writes called_through before the call
  OneRequestPerCall,             \* a call is one request; no layer below it retries
  CommitIsFenced,                \* Commit and Release need the token
  OneOutcome,                    \* the primary key of attempts
  ReaperDecidesUnknown,          \* after an unknown outcome the worker writes nothing: the reaper decides
  KeepsAnswer,                   \* an acceptance that came too late to be committed is recorded as evidence
  KeepsRejections,               \* ... and so is a rejection
  CallDeadline,                  \* a call ends at its deadline
  DeferralCap,                   \* a message is deferred at most MaxDeferrals times
  CountsWhenDeferred,            \* the commit that marks the row as deferred counts it, not the one that releases the batch
  ReapsExpiredOnly,              \* the reaper acts only on an expired lease
  ReapRechecks,                  \* ... and checks the expiry again in the transaction that acts
  ReapsRunningClaims,            \* the reaper does not wait for the end of the worker
  ReadsEvidence,                 \* tier 1: evidence decides
  AcceptanceFirst,               \* ... an acceptance outweighs every rejection
  EvidenceByAttempt,             \* ... a rejection counts only for its own attempt
  WaitsForEvents,                \* tier 2 waits while events of this carrier are pending
  RetriesFirst,                  \* tier 2 comes before tier 3
  AttemptCap,                    \* a third attempt cannot be recorded
  ClaimReadsEvidence,            \* a claim of attempt 2 reads the evidence again
  ReadsRejections,               \* ... and a rejection of the first attempt ends the row
  UnknownThenRejectedIsOrphaned, \* rejected after unknown is orphaned, not failed
  Sweeps                         \* the sweep enqueues a new job for a batch whose job is lost

VARIABLES
  status,            \* batches.status
  attempt,           \* batches.attempt of the notification's current batch
  leasedBy,          \* batches.leased_by
  expired,           \* batches.lease_until has passed
  called,            \* batches.called_through includes the row
  deferred,          \* batches.deferred contains the row: called under this lease, and not accepted
  refusals,          \* batches.refusals of the row
  enqueued,          \* a job for the batch exists
  outcome,           \* the ledger of attempts: attempt -> outcome, "none" without a row
  evidence,          \* provider_events that are visible: <<attempt, kind>>
  pendingEvents,     \* events of the carrier that are not visible yet
  requests,          \* attempt -> requests that the carrier has not answered yet
  delivered,         \* attempt -> messages that the carrier accepted, and that reach the recipient
  pc,                \* claim -> where its goroutine is
  attemptOf,         \* claim -> the attempt that it makes
  answer,            \* claim -> the answer that it has received
  faults,            \* faults left
  seen,              \* the reaper has found the lease expired (mutant ReapRechecks only)
  holder,            \* history: the claim that really holds the lease
  foreignWrite,      \* history: a claim other than the holder has written
  timesDeferred,     \* history: how often the row was deferred
  handled,           \* history: the definite answers that a worker received and handled without a crash
  ignoredAcceptance, \* history: the row was called, retried or orphaned although an acceptance was visible
  ignoredRejection,  \* history: the row was called or retried although a rejection of its first attempt was visible
  ended              \* history: the first terminal status

vars == <<status, attempt, leasedBy, expired, called, deferred, refusals, enqueued, outcome, evidence, pendingEvents, requests,
          delivered, pc, attemptOf, answer, faults, seen, holder, foreignWrite, timesDeferred, handled, ignoredAcceptance,
          ignoredRejection, ended>>

Attempts == 1..3                 \* a third attempt exists only where a mutant allows it
Events == Attempts \X {"accepted", "rejected"}
Token(w) == IF FreshToken THEN w ELSE Node
Messages == delivered[1] + delivered[2] + delivered[3]
HasAcceptance == \E n \in Attempts : <<n, "accepted">> \in evidence
HasRejection == \E n \in Attempts : <<n, "rejected">> \in evidence /\ (EvidenceByAttempt => n = attempt)
FirstRejected == <<1, "rejected">> \in evidence
Terminal == {"sent", "failed", "orphaned"}

\* The view notification_status: o is the ledger, a the attempt of the current
\* batch.
StatusFrom(o, a) ==
  LET last == IF o[3] # "none" THEN 3 ELSE IF o[2] # "none" THEN 2 ELSE IF o[1] # "none" THEN 1 ELSE 0
  IN IF last = 0 THEN "pending"
     ELSE IF o[last] = "accepted" THEN "sent"
     ELSE IF o[last] = "unknown" THEN IF last < a THEN "pending" ELSE "orphaned"
     ELSE IF o[last] = "first_rejected" THEN "failed"
     ELSE IF last > 1 /\ UnknownThenRejectedIsOrphaned THEN "orphaned"
     ELSE "failed"
NotificationStatus == StatusFrom(outcome, attempt)

Init ==
  /\ status = "ready" /\ attempt = 1 /\ leasedBy = NoToken /\ expired = FALSE
  /\ called = FALSE /\ deferred = FALSE /\ refusals = 0 /\ enqueued = TRUE
  /\ outcome = [n \in Attempts |-> "none"]
  /\ evidence = {} /\ pendingEvents = {}
  /\ requests = [n \in Attempts |-> 0] /\ delivered = [n \in Attempts |-> 0]
  /\ pc = [w \in Workers |-> "idle"] /\ attemptOf = [w \in Workers |-> 0] /\ answer = [w \in Workers |-> "nothing"]
  /\ faults = Faults /\ seen = FALSE
  /\ holder = NoToken /\ foreignWrite = FALSE /\ timesDeferred = 0 /\ handled = {} /\ ignoredAcceptance = FALSE
  /\ ignoredRejection = FALSE /\ ended = "none"

\* The ledger after a transaction, and the first terminal status.
WriteLedger(o, a) ==
  /\ outcome' = o
  /\ ended' = IF ended = "none" /\ StatusFrom(o, a) \in Terminal THEN StatusFrom(o, a) ELSE ended
\* The ledger with one more row; the primary key keeps the first.
WithOutcome(n, what) == IF outcome[n] = "none" \/ ~OneOutcome THEN [outcome EXCEPT ![n] = what] ELSE outcome

\* The goroutine ends, and its knowledge is lost.
EndClaim(w) == /\ pc' = [pc EXCEPT ![w] = "idle"] /\ attemptOf' = [attemptOf EXCEPT ![w] = 0] /\ answer' = [answer EXCEPT ![w] = "nothing"]
At(w, where) == /\ pc' = [pc EXCEPT ![w] = where] /\ UNCHANGED <<attemptOf, answer>>
\* The lease ends.
ClearLease == /\ leasedBy' = NoToken /\ holder' = NoToken /\ expired' = FALSE
\* A fault happens, while there are any left.
Fault == /\ faults > 0 /\ faults' = IF UnlimitedFaults THEN faults ELSE faults - 1

-----------------------------------------------------------------------------
\* The worker.

\* Claim leases the batch for a new token. A claim of attempt 2 reads the
\* evidence first (settleByEvidence): if the first attempt was accepted or
\* rejected after all, the row ends without a call. The code reads after the
\* claim and writes with its first commit; evidence only grows, so this one
\* step stands for both.
Claim(w) ==
  /\ pc[w] = "idle" /\ enqueued
  /\ status = "ready" \/ (status = "leased" /\ ~ClaimIsCas)
  /\ LET settled == attempt > 1 /\ ClaimReadsEvidence /\ (HasAcceptance \/ (ReadsRejections /\ FirstRejected))
     IN \/ /\ settled
           /\ WriteLedger(WithOutcome(attempt, IF HasAcceptance THEN "accepted" ELSE "first_rejected"), attempt)
           /\ status' = "done" /\ ClearLease
           /\ UNCHANGED <<called, deferred, pc, attemptOf, answer, ignoredAcceptance, ignoredRejection>>
        \/ /\ ~settled
           /\ status' = "leased" /\ leasedBy' = Token(w) /\ holder' = w /\ expired' = FALSE
           /\ called' = FALSE /\ deferred' = FALSE
           /\ pc' = [pc EXCEPT ![w] = "claimed"] /\ attemptOf' = [attemptOf EXCEPT ![w] = attempt] /\ UNCHANGED answer
           /\ ignoredAcceptance' = (ignoredAcceptance \/ (attempt > 1 /\ HasAcceptance))
           /\ ignoredRejection' = (ignoredRejection \/ (attempt > 1 /\ FirstRejected))
           /\ UNCHANGED <<outcome, ended>>
  /\ UNCHANGED <<attempt, refusals, enqueued, evidence, pendingEvents, requests, delivered, faults, seen, foreignWrite, timesDeferred,
                 handled>>

\* Open extends called_through to the row and renews the lease: the write-ahead
\* intent. Without the token it changes nothing and the claim ends.
Open(w) ==
  /\ pc[w] = "claimed"
  /\ LET ours == leasedBy = Token(w) \/ ~OpenIsFenced
     IN \/ /\ ours
           /\ called' = (called \/ (WriteAhead /\ status = "leased"))
           /\ expired' = FALSE
           /\ foreignWrite' = (foreignWrite \/ holder # w)
           /\ At(w, "open")
        \/ /\ ~ours
           /\ EndClaim(w) /\ UNCHANGED <<called, expired, foreignWrite>>
  /\ UNCHANGED <<status, attempt, leasedBy, deferred, refusals, enqueued, outcome, evidence, pendingEvents, requests, delivered, faults,
                 seen, holder, timesDeferred, handled, ignoredAcceptance, ignoredRejection, ended>>

\* Send starts the request, outside any transaction.
Send(w) ==
  /\ pc[w] = "open" /\ At(w, "calling")
  /\ requests' = [requests EXCEPT ![attemptOf[w]] = @ + IF OneRequestPerCall THEN 1 ELSE 2]
  /\ UNCHANGED <<status, attempt, leasedBy, expired, called, deferred, refusals, enqueued, outcome, evidence, pendingEvents, delivered,
                 faults, seen, holder, foreignWrite, timesDeferred, handled, ignoredAcceptance, ignoredRejection, ended>>

\* A request whose client has ended: without (b) it is never accepted.
Abandon(w) == requests' = IF pc[w] = "calling" /\ ~LateAccept THEN [requests EXCEPT ![attemptOf[w]] = 0] ELSE requests

\* GiveUp: a deadline or a broken connection. The outcome is unknown to the
\* worker.
GiveUp(w) ==
  /\ pc[w] = "calling" /\ CallDeadline
  /\ pc' = [pc EXCEPT ![w] = "answered"] /\ answer' = [answer EXCEPT ![w] = "unknown"] /\ UNCHANGED attemptOf
  /\ Abandon(w)
  /\ UNCHANGED <<status, attempt, leasedBy, expired, called, deferred, refusals, enqueued, outcome, evidence, pendingEvents, delivered,
                 faults, seen, holder, foreignWrite, timesDeferred, handled, ignoredAcceptance, ignoredRejection, ended>>

\* The definite answer of a worker, as evidence.
KnownAnswer(w) == IF answer[w] \in {"accepted", "rejected"} THEN {<<attemptOf[w], answer[w]>>} ELSE {}

\* Commit appends the outcome, fenced by the token. After an unknown outcome it
\* writes nothing, and the lease expires. A deferred row is marked and counted,
\* and Release releases it; at the cap it ends as refused. Without the token
\* the answer goes to Record.
Commit(w) ==
  /\ pc[w] = "answered"
  /\ LET known == answer[w] # "unknown" \/ ~ReaperDecidesUnknown
         again == answer[w] \in {"deferred", "unknown"} /\ (refusals < MaxDeferrals \/ ~DeferralCap)
         ours == leasedBy = Token(w) \/ ~CommitIsFenced
     IN \/ /\ ~known /\ EndClaim(w)
           /\ UNCHANGED <<status, leasedBy, holder, expired, deferred, refusals, timesDeferred, outcome, ended, foreignWrite, handled>>
        \/ /\ known /\ ours /\ again
           /\ deferred' = TRUE /\ foreignWrite' = (foreignWrite \/ holder # w) /\ At(w, "release")
           /\ refusals' = IF DeferralCap /\ CountsWhenDeferred THEN refusals + 1 ELSE refusals
           /\ timesDeferred' = IF DeferralCap THEN timesDeferred + 1 ELSE timesDeferred
           /\ UNCHANGED <<status, leasedBy, holder, expired, outcome, ended, handled>>
        \/ /\ known /\ ours /\ ~again
           /\ WriteLedger(WithOutcome(attemptOf[w], IF answer[w] = "deferred" THEN "refused" ELSE answer[w]), attempt)
           /\ foreignWrite' = (foreignWrite \/ holder # w)
           /\ handled' = handled \union KnownAnswer(w)
           /\ \/ /\ attemptOf[w] = attempt /\ status' = "done" /\ ClearLease
              \/ /\ attemptOf[w] # attempt /\ UNCHANGED <<status, leasedBy, holder, expired>>
           /\ EndClaim(w) /\ UNCHANGED <<deferred, refusals, timesDeferred>>
        \/ /\ known /\ ~ours /\ At(w, "lost")
           /\ UNCHANGED <<status, leasedBy, holder, expired, deferred, refusals, timesDeferred, outcome, ended, foreignWrite, handled>>
  /\ UNCHANGED <<attempt, called, enqueued, evidence, pendingEvents, requests, delivered, faults, seen, ignoredAcceptance,
                 ignoredRejection>>

\* Release ends the lease: the row may be called again, under the same attempt.
Release(w) ==
  /\ pc[w] = "release" /\ EndClaim(w)
  /\ LET ours == leasedBy = Token(w) \/ ~CommitIsFenced
     IN \/ /\ ours
           /\ status' = "ready" /\ ClearLease /\ called' = FALSE /\ deferred' = FALSE /\ enqueued' = TRUE
           /\ refusals' = IF DeferralCap /\ ~CountsWhenDeferred THEN refusals + 1 ELSE refusals
           /\ foreignWrite' = (foreignWrite \/ holder # w)
        \/ /\ ~ours
           /\ UNCHANGED <<status, leasedBy, holder, expired, called, deferred, enqueued, refusals, foreignWrite>>
  /\ UNCHANGED <<attempt, outcome, evidence, pendingEvents, requests, delivered, faults, seen, timesDeferred, handled,
                 ignoredAcceptance, ignoredRejection, ended>>

\* Record keeps a definite answer as evidence when the lease was lost.
Record(w) ==
  /\ pc[w] = "lost" /\ EndClaim(w)
  /\ evidence' = IF KeepsAnswer /\ (KeepsRejections \/ answer[w] = "accepted") THEN evidence \union KnownAnswer(w) ELSE evidence
  /\ handled' = handled \union KnownAnswer(w)
  /\ UNCHANGED <<status, attempt, leasedBy, expired, called, deferred, refusals, enqueued, outcome, pendingEvents, requests, delivered,
                 faults, seen, holder, foreignWrite, timesDeferred, ignoredAcceptance, ignoredRejection, ended>>

\* Crash ends a goroutine at any step. Its knowledge is lost; the database is
\* not.
Crash(w) ==
  /\ pc[w] # "idle" /\ Fault /\ EndClaim(w) /\ Abandon(w)
  /\ UNCHANGED <<status, attempt, leasedBy, expired, called, deferred, refusals, enqueued, outcome, evidence, pendingEvents, delivered,
                 seen, holder, foreignWrite, timesDeferred, handled, ignoredAcceptance, ignoredRejection, ended>>

-----------------------------------------------------------------------------
\* The carrier.

Waiting(n) == {w \in Workers : pc[w] = "calling" /\ attemptOf[w] = n}
\* The carrier answers a request of attempt n. The answer reaches a client that
\* waits for it, or is lost.
Respond(n, what) ==
  /\ what \in Answers /\ requests[n] > 0 /\ (LateAccept \/ Waiting(n) # {})
  /\ requests' = [requests EXCEPT ![n] = @ - 1]
  /\ \/ UNCHANGED <<pc, answer>>
     \/ \E w \in Waiting(n) : pc' = [pc EXCEPT ![w] = "answered"] /\ answer' = [answer EXCEPT ![w] = what]
  /\ UNCHANGED <<status, attempt, leasedBy, expired, called, deferred, refusals, enqueued, outcome, evidence, attemptOf, faults, seen,
                 holder, foreignWrite, timesDeferred, handled, ignoredAcceptance, ignoredRejection, ended>>
\* Accept: the message reaches the recipient, and an event will report it.
Accept(n) == /\ Respond(n, "accepted")
             /\ delivered' = [delivered EXCEPT ![n] = @ + 1] /\ pendingEvents' = pendingEvents \union {<<n, "accepted">>}
\* Reject: the message is not delivered; an event will report it.
Reject(n) == /\ Respond(n, "rejected") /\ pendingEvents' = pendingEvents \union {<<n, "rejected">>} /\ UNCHANGED delivered
\* Defer: the message is not accepted this time.
Defer(n) == /\ Respond(n, "deferred") /\ UNCHANGED <<delivered, pendingEvents>>
\* Visible: an event has arrived and is committed.
Visible(e) ==
  /\ e \in pendingEvents /\ pendingEvents' = pendingEvents \ {e} /\ evidence' = evidence \union {e}
  /\ UNCHANGED <<status, attempt, leasedBy, expired, called, deferred, refusals, enqueued, outcome, requests, delivered, pc, attemptOf,
                 answer, faults, seen, holder, foreignWrite, timesDeferred, handled, ignoredAcceptance, ignoredRejection, ended>>
\* LoseEvent: fault (c).
LoseEvent(e) ==
  /\ EventsLost /\ e \in pendingEvents /\ pendingEvents' = pendingEvents \ {e}
  /\ UNCHANGED <<status, attempt, leasedBy, expired, called, deferred, refusals, enqueued, outcome, evidence, requests, delivered, pc,
                 attemptOf, answer, faults, seen, holder, foreignWrite, timesDeferred, handled, ignoredAcceptance, ignoredRejection,
                 ended>>

-----------------------------------------------------------------------------
\* Time, the reaper and the sweep.

Calling(w) == pc[w] \in {"open", "calling"}
\* LeaseEnds: lease_until passes. Under assumption (a) this does not happen
\* while the holder is calling. Before and after the call it may happen, and
\* counts as a fault.
LeaseEnds ==
  /\ status = "leased" /\ ~expired /\ expired' = TRUE
  /\ LET live == {w \in Workers : holder = w /\ pc[w] # "idle"}
         calling == \E w \in live : Calling(w)
     IN \/ /\ live = {} /\ UNCHANGED faults
        \/ /\ calling /\ HolderOutlivesLease /\ UNCHANGED faults
        \/ /\ live # {} /\ ~calling /\ Fault
  /\ UNCHANGED <<status, attempt, leasedBy, called, deferred, refusals, enqueued, outcome, evidence, pendingEvents, requests, delivered,
                 pc, attemptOf, answer, seen, holder, foreignWrite, timesDeferred, handled, ignoredAcceptance, ignoredRejection, ended>>

\* The reaper finds an expired lease (mutant ReapRechecks only).
FindExpired ==
  /\ ~ReapRechecks /\ expired /\ ~seen /\ seen' = TRUE
  /\ UNCHANGED <<status, attempt, leasedBy, expired, called, deferred, refusals, enqueued, outcome, evidence, pendingEvents, requests,
                 delivered, pc, attemptOf, answer, faults, holder, foreignWrite, timesDeferred, handled, ignoredAcceptance,
                 ignoredRejection, ended>>

\* Reap handles one expired lease, in one transaction.
Reap ==
  /\ (ReapRechecks /\ status = "leased" /\ (expired \/ ~ReapsExpiredOnly)) \/ (~ReapRechecks /\ seen)
  /\ ReapsRunningClaims \/ ~\E w \in Workers : pc[w] # "idle" /\ Token(w) = leasedBy
  /\ seen' = FALSE
  /\ LET ends(what) == /\ WriteLedger(WithOutcome(attempt, what), attempt) /\ status' = "done"
                       /\ UNCHANGED <<attempt, called, deferred, refusals, enqueued>>
         retry == attempt < MaxAttempts \/ ~AttemptCap
         decided == ReadsEvidence /\ (HasAcceptance \/ HasRejection)
         unknown == called /\ ~deferred
         \* The outcome by the evidence of tier 1. After two rejections no message has arrived.
         proof == IF HasAcceptance /\ (AcceptanceFirst \/ ~HasRejection) THEN "accepted"
                  ELSE IF attempt > 1 /\ FirstRejected THEN "first_rejected" ELSE "rejected"
     IN \/ \* Not called, or not accepted: it may be called again.
           /\ ~unknown
           /\ status' = "ready" /\ called' = FALSE /\ deferred' = FALSE /\ enqueued' = TRUE
           /\ UNCHANGED <<attempt, refusals, outcome, ended, ignoredAcceptance, ignoredRejection>>
        \/ \* Tier 1: the evidence decides.
           /\ unknown /\ decided /\ ends(proof) /\ UNCHANGED ignoredRejection
           /\ ignoredAcceptance' = (ignoredAcceptance \/ (HasAcceptance /\ proof # "accepted"))
        \/ \* Tier 2: a second attempt, once no event can arrive any more.
           /\ unknown /\ ~decided /\ retry
           /\ WaitsForEvents => (pendingEvents = {} \/ EventsTooLate)
           /\ attempt < 3 /\ attempt' = attempt + 1
           /\ WriteLedger(WithOutcome(attempt, "unknown"), attempt + 1)
           /\ status' = "ready" /\ called' = FALSE /\ enqueued' = TRUE /\ UNCHANGED <<deferred, refusals>>
           /\ ignoredAcceptance' = (ignoredAcceptance \/ HasAcceptance) /\ ignoredRejection' = (ignoredRejection \/ FirstRejected)
        \/ \* Tier 3: the outcome stays unknown.
           /\ unknown /\ ~decided /\ (~retry \/ ~RetriesFirst)
           /\ ends("unknown") /\ ignoredAcceptance' = (ignoredAcceptance \/ HasAcceptance) /\ UNCHANGED ignoredRejection
  /\ ClearLease
  /\ UNCHANGED <<evidence, pendingEvents, requests, delivered, pc, attemptOf, answer, faults, foreignWrite, timesDeferred, handled>>

\* LoseJob: the job of the batch is lost.
LoseJob ==
  /\ JobsLost /\ status = "ready" /\ enqueued /\ enqueued' = FALSE /\ Fault
  /\ UNCHANGED <<status, attempt, leasedBy, expired, called, deferred, refusals, outcome, evidence, pendingEvents, requests, delivered,
                 pc, attemptOf, answer, seen, holder, foreignWrite, timesDeferred, handled, ignoredAcceptance, ignoredRejection, ended>>
\* Sweep enqueues a new job.
Sweep ==
  /\ Sweeps /\ status = "ready" /\ ~enqueued /\ enqueued' = TRUE
  /\ UNCHANGED <<status, attempt, leasedBy, expired, called, deferred, refusals, outcome, evidence, pendingEvents, requests, delivered,
                 pc, attemptOf, answer, faults, seen, holder, foreignWrite, timesDeferred, handled, ignoredAcceptance, ignoredRejection,
                 ended>>

Next ==
  \/ \E w \in Workers : Claim(w)
  \/ \E w \in Workers : Open(w)
  \/ \E w \in Workers : Send(w)
  \/ \E w \in Workers : GiveUp(w)
  \/ \E w \in Workers : Commit(w)
  \/ \E w \in Workers : Release(w)
  \/ \E w \in Workers : Record(w)
  \/ \E w \in Workers : Crash(w)
  \/ \E n \in Attempts : Accept(n)
  \/ \E n \in Attempts : Reject(n)
  \/ \E n \in Attempts : Defer(n)
  \/ \E e \in Events : Visible(e)
  \/ \E e \in Events : LoseEvent(e)
  \/ LeaseEnds
  \/ FindExpired
  \/ Reap
  \/ LoseJob
  \/ Sweep

\* No fairness is assumed of the carrier or of jobs. Only Lemma's own enabled
\* steps are taken, and time passes.
Fairness ==
  /\ WF_vars(\E v \in Workers : Claim(v))
  /\ \A w \in Workers : /\ WF_vars(Open(w)) /\ WF_vars(Send(w)) /\ WF_vars(GiveUp(w))
                        /\ WF_vars(Commit(w)) /\ WF_vars(Release(w)) /\ WF_vars(Record(w))
  /\ \A e \in Events : WF_vars(Visible(e))
  /\ WF_vars(LeaseEnds) /\ WF_vars(Reap) /\ WF_vars(Sweep)
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK ==
  /\ status \in {"ready", "leased", "done"} /\ attempt \in Attempts /\ leasedBy \in Workers \union {Node, NoToken}
  /\ outcome \in [Attempts -> {"none", "accepted", "rejected", "refused", "unknown", "first_rejected"}]
  /\ (status = "leased") = (leasedBy # NoToken)
  /\ evidence \subseteq Events /\ pendingEvents \subseteq Events
\* Whatever crashes, hangs or races: at most two messages.
BoundedSendCount == Messages <= 2
\* With at_most_once: at most one message, without any assumption.
AtMostOnceStrategy == MaxAttempts = 1 => Messages <= 1
\* With at_least_once: at most one message while all four assumptions hold.
SingleSendUnderAssumptions == Messages <= 1
\* An attempt has at most one request that is a message or can still become
\* one.
OneRequestPerAttempt == \A n \in Attempts : requests[n] + delivered[n] <= 1
\* A terminal status never changes.
TerminalStable == ended # "none" => NotificationStatus = ended
\* Only the claim that holds the lease writes.
OnlyOwnerCommits == ~foreignWrite
\* sent: the message arrived. failed: it did not.
StatusTruth == /\ NotificationStatus = "sent" => Messages >= 1
               /\ NotificationStatus = "failed" => Messages = 0
\* A row of the ledger is true of its own attempt.
LedgerTruth == \A n \in Attempts :
  /\ outcome[n] \in {"rejected", "first_rejected"} => delivered[n] = 0
  /\ outcome[n] = "accepted" => Messages >= 1
\* A notification is orphaned only after every attempt that the strategy
\* allows.
OrphanedMeansNoAttemptLeft == NotificationStatus = "orphaned" => (attempt = MaxAttempts /\ outcome[MaxAttempts] # "none")
\* A definite answer that a worker received and handled is recorded.
AnswersAreKept == \A e \in handled : e \in evidence \/ outcome[e[1]] = e[2]
\* A row is never called again, retried or orphaned while an acceptance is
\* visible.
AcceptanceIsFinal == ~ignoredAcceptance
\* A row is never called again while a rejection of its first attempt is
\* visible: it has failed.
RejectionIsFinal == ~ignoredRejection
\* A row is deferred at most MaxDeferrals times, whatever crashes.
DeferralsWithinCap == timesDeferred <= MaxDeferrals
\* The ledger has at most one outcome per attempt, and a second attempt only
\* after an unknown first.
OneOutcomePerAttempt == outcome[2] # "none" => outcome[1] = "unknown"
\* Every notification ends.
EventuallyTerminal == <>(status = "done" /\ NotificationStatus \in Terminal)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverOrphaned == NotificationStatus # "orphaned"
NeverTwoMessages == Messages < 2
NeverLostLease == ~\E w \in Workers : pc[w] = "lost"
NeverLateAccept == ~\E n \in Attempts : delivered[n] > 0 /\ outcome[n] = "unknown" /\ requests[n] = 0 /\ pendingEvents # {}
NeverSentByEvidence == ~(NotificationStatus = "sent" /\
  (\A w \in Workers : answer[w] # "accepted") /\ ~\E e \in handled : e[2] = "accepted")
NeverUnknownThenRejected == ~(outcome[1] = "unknown" /\ outcome[2] = "rejected")
NeverDeferredThenSent == ~(refusals > 0 /\ NotificationStatus = "sent")
NeverFailed == NotificationStatus # "failed"
NeverSettledByClaim == ~(attempt = 2 /\ NotificationStatus = "sent" /\ requests[2] + delivered[2] = 0)
NeverFailedByClaim == outcome[2] # "first_rejected"
NeverBothRejected == ~(outcome[2] = "first_rejected" /\ <<2, "rejected">> \in evidence)
=============================================================================
