---------------------------- MODULE SendingEngine ----------------------------
\* One notification on its way to a carrier: how often can it arrive, and does
\* its status tell the truth?
\*
\* Modelled: the batch row that carries the lease (a batch of one notification
\* is enough here; Batch.tla has several), the ledger of attempts, the evidence
\* that carriers give later, workers that crash at every step, hang in a call or
\* wake up after their lease, the reaper, lost jobs, and a carrier that may
\* accept, reject, put off, answer late or not at all. One action is one
\* function of the code and at most one transaction; Send is the call itself.
\*
\* Left out, and why that is sound:
\* - Time. A lease is live or expired, an event is visible or not; which of two
\*   comes first is left open, so every timing is among the behaviours.
\* - Gates, deadlines and several rows: Batch.tla and Campaign.tla. They only
\*   ever take calls away.
\* - What the message says. Both attempts send the same bytes; a test holds that.
\* - Fresh tokens are drawn without end in the code. Here a token is the name of
\*   the claim (an element of Workers) and is used again only after that claim
\*   is over, so that no two claims that live at the same time share one.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers,          \* claims that can be alive at the same time
  Node,             \* the process they all run in; a token in one mutant only
  NoOne,            \* no token: leased_by is null
  MaxAttempts,      \* 1: at_most_once, 2: at_least_once
  Answers,          \* what the carrier may say: accepted, rejected, deferred
  MaxDeferrals,     \* how often a message is put off before it ends as refused
  Faults,           \* how many crashes, early expiries and lost jobs there are ...
  Endless           \* ... TRUE: without end

CONSTANTS           \* Faults. Each of the first four is one of the four assumptions, dropped
  HolderOutlives,   \* (a) a lease may expire while its holder is calling
  LateAccept,       \* (b) the carrier may accept a request that the client gave up on
  EventsLost,       \* (c) an event of the carrier may be lost
  EventsTooLate,    \* (d) an event may come later than the reaper waits for it
  JobsLost          \* the job that rings for a batch may be lost

CONSTANTS           \* Guards. TRUE in the design; each is FALSE in its own mutant
  ClaimIsCas,         \* Claim takes only a batch that is ready
  FreshToken,         \* a token names the claim, not the process
  OpenIsGated,        \* Open needs the token
  WriteAhead,         \* Open writes called_through before the call
  OneWireRequest,     \* a call is one request; nothing below it retries
  CommitIsGated,      \* Commit and Release need the token
  OneOutcome,         \* the primary key of attempts
  UnknownToReaper,    \* after an unknown answer nothing is written: the reaper decides
  KeepsAnswer,        \* a known answer that came too late to be committed is kept as evidence
  KeepsRejections,    \* ... a rejection as well as an acceptance
  CallDeadline,       \* a call ends at its deadline
  DeferralCap,        \* putting off ends at its cap
  CountsWhenPutOff,   \* ... and is counted by the commit that marks the row, not by the one that gives it back
  ReapsExpiredOnly,   \* the reaper acts only on an expired lease
  ReapRechecks,       \* ... and looks again in the transaction that acts
  ReapsTheLiving,     \* the reaper does not wait for the worker to be gone
  ReadsEvidence,      \* tier 1
  AcceptanceFirst,    \* ... an acceptance outweighs every rejection
  EvidenceByAttempt,  \* ... a rejection counts for the attempt that it speaks of
  WaitsForEvents,     \* tier 2 waits while events of this carrier are under way
  RetriesFirst,       \* tier 2 comes before tier 3
  AttemptCap,         \* no third attempt can be written down
  ClaimReadsEvidence, \* a claim of attempt 2 reads the evidence again
  HeedsRejections,    \* ... and a rejection of the first attempt ends the row
  UnknownTaints,      \* rejected after unknown is orphaned, not failed
  Sweeps              \* the sweep rings again for a batch whose job is gone

VARIABLES
  state,     \* batches.state
  attempt,   \* batches.attempt of the batch that holds the notification now
  leasedBy,  \* batches.leased_by
  expired,   \* batches.lease_until has passed
  called,    \* batches.called_through has reached the row
  deferred,  \* batches.deferred holds the row: called under this lease, surely not accepted
  deferrals, \* batches.refusals of the row
  rung,      \* a job for the batch exists
  outcome,   \* the ledger of attempts: attempt -> outcome, "none" where there is no row
  evidence,  \* provider_events that are visible: <<attempt, kind>>
  transit,   \* events that the carrier has for us and that are not visible yet
  wire,      \* attempt -> requests on the wire that the carrier has not decided
  taken,     \* attempt -> messages that the carrier took: what reaches the recipient
  pc,        \* claim -> where its goroutine is
  job,       \* claim -> the attempt that it makes
  heard,     \* claim -> the answer in its hands
  faults,    \* faults left
  seen,      \* the reaper has seen the lease expired (mutant ReapRechecks only)
  holder,    \* history: the claim that really holds the lease
  foreign,   \* history: somebody else than the holder has written
  putOff,    \* history: how often the row was put off
  kept,      \* history: the answers that workers heard and lived to deal with
  against,   \* history: the row was called, retried or given up in the face of visible acceptance
  insisted,  \* history: the row was called or retried although its first attempt was seen to be rejected
  ended      \* history: the first terminal status

vars == <<state, attempt, leasedBy, expired, called, deferred, deferrals, rung, outcome, evidence, transit,
          wire, taken, pc, job, heard, faults, seen, holder, foreign, putOff, kept, against, insisted, ended>>

Calls == 1..3                 \* a third attempt exists only where a mutant allows it
Events == Calls \X {"accepted", "rejected"}
Token(w) == IF FreshToken THEN w ELSE Node
Delivered == taken[1] + taken[2] + taken[3]
AcceptanceSeen == \E n \in Calls : <<n, "accepted">> \in evidence
RejectionSeen == \E n \in Calls : <<n, "rejected">> \in evidence /\ (EvidenceByAttempt => n = attempt)
FirstRejected == <<1, "rejected">> \in evidence
Terminal == {"sent", "failed", "orphaned"}

\* The view notification_status: o is the ledger, a the attempt of the current batch.
StatusOf(o, a) ==
  LET last == IF o[3] # "none" THEN 3 ELSE IF o[2] # "none" THEN 2 ELSE IF o[1] # "none" THEN 1 ELSE 0
  IN IF last = 0 THEN "pending"
     ELSE IF o[last] = "accepted" THEN "sent"
     ELSE IF o[last] = "unknown" THEN IF last < a THEN "pending" ELSE "orphaned"
     ELSE IF o[last] = "first_rejected" THEN "failed"
     ELSE IF last > 1 /\ UnknownTaints THEN "orphaned"
     ELSE "failed"
Status == StatusOf(outcome, attempt)

Init ==
  /\ state = "ready" /\ attempt = 1 /\ leasedBy = NoOne /\ expired = FALSE
  /\ called = FALSE /\ deferred = FALSE /\ deferrals = 0 /\ rung = TRUE
  /\ outcome = [n \in Calls |-> "none"]
  /\ evidence = {} /\ transit = {}
  /\ wire = [n \in Calls |-> 0] /\ taken = [n \in Calls |-> 0]
  /\ pc = [w \in Workers |-> "idle"] /\ job = [w \in Workers |-> 0] /\ heard = [w \in Workers |-> "nothing"]
  /\ faults = Faults /\ seen = FALSE
  /\ holder = NoOne /\ foreign = FALSE /\ putOff = 0 /\ kept = {} /\ against = FALSE /\ insisted = FALSE /\ ended = "none"

\* What a transaction leaves in the ledger, and the first terminal status.
Book(o, a) ==
  /\ outcome' = o
  /\ ended' = IF ended = "none" /\ StatusOf(o, a) \in Terminal THEN StatusOf(o, a) ELSE ended
\* One row into the ledger; the primary key keeps the first.
Put(n, what) == IF outcome[n] = "none" \/ ~OneOutcome THEN [outcome EXCEPT ![n] = what] ELSE outcome

\* The goroutine is over and has forgotten everything.
Gone(w) == /\ pc' = [pc EXCEPT ![w] = "idle"] /\ job' = [job EXCEPT ![w] = 0] /\ heard' = [heard EXCEPT ![w] = "nothing"]
At(w, where) == /\ pc' = [pc EXCEPT ![w] = where] /\ UNCHANGED <<job, heard>>
\* The lease ends.
Unlease == /\ leasedBy' = NoOne /\ holder' = NoOne /\ expired' = FALSE
\* A fault happens, while there are any left.
Fault == /\ faults > 0 /\ faults' = IF Endless THEN faults ELSE faults - 1

-----------------------------------------------------------------------------
\* The worker.

\* Claim takes the batch for a fresh token. A claim of attempt 2 reads the
\* evidence first (settleByEvidence): if the first attempt was accepted or
\* rejected after all, that settles the row and nobody is called. The code reads
\* right after the claim and writes with its first commit; evidence only grows,
\* so the one step here stands for both.
Claim(w) ==
  /\ pc[w] = "idle" /\ rung
  /\ state = "ready" \/ (state = "leased" /\ ~ClaimIsCas)
  /\ LET settled == attempt > 1 /\ ClaimReadsEvidence /\ (AcceptanceSeen \/ (HeedsRejections /\ FirstRejected))
     IN \/ /\ settled
           /\ Book(Put(attempt, IF AcceptanceSeen THEN "accepted" ELSE "first_rejected"), attempt)
           /\ state' = "done" /\ Unlease
           /\ UNCHANGED <<called, deferred, pc, job, heard, against, insisted>>
        \/ /\ ~settled
           /\ state' = "leased" /\ leasedBy' = Token(w) /\ holder' = w /\ expired' = FALSE
           /\ called' = FALSE /\ deferred' = FALSE
           /\ pc' = [pc EXCEPT ![w] = "claimed"] /\ job' = [job EXCEPT ![w] = attempt] /\ UNCHANGED heard
           /\ against' = (against \/ (attempt > 1 /\ AcceptanceSeen))
           /\ insisted' = (insisted \/ (attempt > 1 /\ FirstRejected))
           /\ UNCHANGED <<outcome, ended>>
  /\ UNCHANGED <<attempt, deferrals, rung, evidence, transit, wire, taken, faults, seen, foreign, putOff, kept>>

\* Open moves called_through over the row and renews the lease: the write-ahead
\* intent. Without the token it changes nothing and the worker goes.
Open(w) ==
  /\ pc[w] = "claimed"
  /\ LET ours == leasedBy = Token(w) \/ ~OpenIsGated
     IN \/ /\ ours
           /\ called' = (called \/ (WriteAhead /\ state = "leased"))
           /\ expired' = FALSE
           /\ foreign' = (foreign \/ holder # w)
           /\ At(w, "open")
        \/ /\ ~ours
           /\ Gone(w) /\ UNCHANGED <<called, expired, foreign>>
  /\ UNCHANGED <<state, attempt, leasedBy, deferred, deferrals, rung, outcome, evidence, transit, wire, taken,
                 faults, seen, holder, putOff, kept, against, insisted, ended>>

\* Send puts the request on the wire, outside any transaction.
Send(w) ==
  /\ pc[w] = "open" /\ At(w, "calling")
  /\ wire' = [wire EXCEPT ![job[w]] = @ + IF OneWireRequest THEN 1 ELSE 2]
  /\ UNCHANGED <<state, attempt, leasedBy, expired, called, deferred, deferrals, rung, outcome, evidence, transit, taken,
                 faults, seen, holder, foreign, putOff, kept, against, insisted, ended>>

\* What becomes of a request whose client is gone: without (b) it will never be accepted.
Abandon(w) == wire' = IF pc[w] = "calling" /\ ~LateAccept THEN [wire EXCEPT ![job[w]] = 0] ELSE wire

\* GiveUp: the deadline, a reset connection: the outcome is unknown to the worker.
GiveUp(w) ==
  /\ pc[w] = "calling" /\ CallDeadline
  /\ pc' = [pc EXCEPT ![w] = "answered"] /\ heard' = [heard EXCEPT ![w] = "unknown"] /\ UNCHANGED job
  /\ Abandon(w)
  /\ UNCHANGED <<state, attempt, leasedBy, expired, called, deferred, deferrals, rung, outcome, evidence, transit, taken,
                 faults, seen, holder, foreign, putOff, kept, against, insisted, ended>>

\* The definite answer in a worker's hands, as evidence.
Heard(w) == IF heard[w] \in {"accepted", "rejected"} THEN {<<job[w], heard[w]>>} ELSE {}

\* Commit appends the outcome, gated on the token. Unknown: nothing is written
\* and the lease runs out. Put off: marked and counted, and given back by
\* Release; at the cap it ends as refused. Without the token the answer goes to
\* Record.
Commit(w) ==
  /\ pc[w] = "answered"
  /\ LET known == heard[w] # "unknown" \/ ~UnknownToReaper
         again == heard[w] \in {"deferred", "unknown"} /\ (deferrals < MaxDeferrals \/ ~DeferralCap)
         ours == leasedBy = Token(w) \/ ~CommitIsGated
     IN \/ /\ ~known /\ Gone(w)
           /\ UNCHANGED <<state, leasedBy, holder, expired, deferred, deferrals, putOff, outcome, ended, foreign, kept>>
        \/ /\ known /\ ours /\ again
           /\ deferred' = TRUE /\ foreign' = (foreign \/ holder # w) /\ At(w, "release")
           /\ deferrals' = IF DeferralCap /\ CountsWhenPutOff THEN deferrals + 1 ELSE deferrals
           /\ putOff' = IF DeferralCap THEN putOff + 1 ELSE putOff
           /\ UNCHANGED <<state, leasedBy, holder, expired, outcome, ended, kept>>
        \/ /\ known /\ ours /\ ~again
           /\ Book(Put(job[w], IF heard[w] = "deferred" THEN "refused" ELSE heard[w]), attempt)
           /\ foreign' = (foreign \/ holder # w)
           /\ kept' = kept \union Heard(w)
           /\ \/ /\ job[w] = attempt /\ state' = "done" /\ Unlease
              \/ /\ job[w] # attempt /\ UNCHANGED <<state, leasedBy, holder, expired>>
           /\ Gone(w) /\ UNCHANGED <<deferred, deferrals, putOff>>
        \/ /\ known /\ ~ours /\ At(w, "lost")
           /\ UNCHANGED <<state, leasedBy, holder, expired, deferred, deferrals, putOff, outcome, ended, foreign, kept>>
  /\ UNCHANGED <<attempt, called, rung, evidence, transit, wire, taken, faults, seen, against, insisted>>

\* Release gives the batch back: the row is free again, for the same attempt.
Release(w) ==
  /\ pc[w] = "release" /\ Gone(w)
  /\ LET ours == leasedBy = Token(w) \/ ~CommitIsGated
     IN \/ /\ ours
           /\ state' = "ready" /\ Unlease /\ called' = FALSE /\ deferred' = FALSE /\ rung' = TRUE
           /\ deferrals' = IF DeferralCap /\ ~CountsWhenPutOff THEN deferrals + 1 ELSE deferrals
           /\ foreign' = (foreign \/ holder # w)
        \/ /\ ~ours
           /\ UNCHANGED <<state, leasedBy, holder, expired, called, deferred, rung, deferrals, foreign>>
  /\ UNCHANGED <<attempt, outcome, evidence, transit, wire, taken, faults, seen, putOff, kept, against, insisted, ended>>

\* Record keeps a known answer as evidence when the lease was lost.
Record(w) ==
  /\ pc[w] = "lost" /\ Gone(w)
  /\ evidence' = IF KeepsAnswer /\ (KeepsRejections \/ heard[w] = "accepted") THEN evidence \union Heard(w) ELSE evidence
  /\ kept' = kept \union Heard(w)
  /\ UNCHANGED <<state, attempt, leasedBy, expired, called, deferred, deferrals, rung, outcome, transit, wire, taken,
                 faults, seen, holder, foreign, putOff, against, insisted, ended>>

\* Crash ends a goroutine anywhere; what it knew is lost, the database is not.
Crash(w) ==
  /\ pc[w] # "idle" /\ Fault /\ Gone(w) /\ Abandon(w)
  /\ UNCHANGED <<state, attempt, leasedBy, expired, called, deferred, deferrals, rung, outcome, evidence, transit, taken,
                 seen, holder, foreign, putOff, kept, against, insisted, ended>>

-----------------------------------------------------------------------------
\* The carrier.

Waiting(n) == {w \in Workers : pc[w] = "calling" /\ job[w] = n}
\* It decides a request of attempt n. The answer reaches a client that waits for it, or is lost.
Answer(n, what) ==
  /\ what \in Answers /\ wire[n] > 0 /\ (LateAccept \/ Waiting(n) # {})
  /\ wire' = [wire EXCEPT ![n] = @ - 1]
  /\ \/ UNCHANGED <<pc, heard>>
     \/ \E w \in Waiting(n) : pc' = [pc EXCEPT ![w] = "answered"] /\ heard' = [heard EXCEPT ![w] = what]
  /\ UNCHANGED <<state, attempt, leasedBy, expired, called, deferred, deferrals, rung, outcome, evidence, job,
                 faults, seen, holder, foreign, putOff, kept, against, insisted, ended>>
\* Accept: the message reaches the recipient, and an event will say so.
Accept(n) == /\ Answer(n, "accepted")
             /\ taken' = [taken EXCEPT ![n] = @ + 1] /\ transit' = transit \union {<<n, "accepted">>}
\* Reject: surely and for good not taken; an event says so too.
Reject(n) == /\ Answer(n, "rejected") /\ transit' = transit \union {<<n, "rejected">>} /\ UNCHANGED taken
\* Defer: surely not taken this time.
Defer(n) == /\ Answer(n, "deferred") /\ UNCHANGED <<taken, transit>>
\* Visible: an event has arrived and is committed.
Visible(e) ==
  /\ e \in transit /\ transit' = transit \ {e} /\ evidence' = evidence \union {e}
  /\ UNCHANGED <<state, attempt, leasedBy, expired, called, deferred, deferrals, rung, outcome, wire, taken, pc, job, heard,
                 faults, seen, holder, foreign, putOff, kept, against, insisted, ended>>
\* LoseEvent: fault (c).
LoseEvent(e) ==
  /\ EventsLost /\ e \in transit /\ transit' = transit \ {e}
  /\ UNCHANGED <<state, attempt, leasedBy, expired, called, deferred, deferrals, rung, outcome, evidence, wire, taken, pc, job, heard,
                 faults, seen, holder, foreign, putOff, kept, against, insisted, ended>>

-----------------------------------------------------------------------------
\* Time, the reaper and the sweep.

Calling(w) == pc[w] \in {"open", "calling"}
\* LeaseEnds: lease_until passes. Under assumption (a) not while the holder is
\* calling; before and after the call that may happen, and counts as a fault.
LeaseEnds ==
  /\ state = "leased" /\ ~expired /\ expired' = TRUE
  /\ LET live == {w \in Workers : holder = w /\ pc[w] # "idle"}
         calling == \E w \in live : Calling(w)
     IN \/ /\ live = {} /\ UNCHANGED faults
        \/ /\ calling /\ HolderOutlives /\ UNCHANGED faults
        \/ /\ live # {} /\ ~calling /\ Fault
  /\ UNCHANGED <<state, attempt, leasedBy, called, deferred, deferrals, rung, outcome, evidence, transit, wire, taken, pc, job, heard,
                 seen, holder, foreign, putOff, kept, against, insisted, ended>>

\* The reaper looks for expired leases (of interest to one mutant only).
ReapLook ==
  /\ ~ReapRechecks /\ expired /\ ~seen /\ seen' = TRUE
  /\ UNCHANGED <<state, attempt, leasedBy, expired, called, deferred, deferrals, rung, outcome, evidence, transit, wire, taken, pc, job, heard,
                 faults, holder, foreign, putOff, kept, against, insisted, ended>>

\* Reap deals with one expired lease, in one transaction.
Reap ==
  /\ (ReapRechecks /\ state = "leased" /\ (expired \/ ~ReapsExpiredOnly)) \/ (~ReapRechecks /\ seen)
  /\ ReapsTheLiving \/ ~\E w \in Workers : pc[w] # "idle" /\ Token(w) = leasedBy
  /\ seen' = FALSE
  /\ LET ends(what) == /\ Book(Put(attempt, what), attempt) /\ state' = "done"
                       /\ UNCHANGED <<attempt, called, deferred, deferrals, rung>>
         retry == attempt < MaxAttempts \/ ~AttemptCap
         told == ReadsEvidence /\ (AcceptanceSeen \/ RejectionSeen)
         doubt == called /\ ~deferred
         \* What tier 1 makes of the evidence. Two rejections: nobody got it.
         proof == IF AcceptanceSeen /\ (AcceptanceFirst \/ ~RejectionSeen) THEN "accepted"
                  ELSE IF attempt > 1 /\ FirstRejected THEN "first_rejected" ELSE "rejected"
     IN \/ \* Not called, or surely not accepted: free.
           /\ ~doubt
           /\ state' = "ready" /\ called' = FALSE /\ deferred' = FALSE /\ rung' = TRUE
           /\ UNCHANGED <<attempt, deferrals, outcome, ended, against, insisted>>
        \/ \* Tier 1: the evidence decides.
           /\ doubt /\ told /\ ends(proof) /\ UNCHANGED insisted
           /\ against' = (against \/ (AcceptanceSeen /\ proof # "accepted"))
        \/ \* Tier 2: once more, when no event can still tell.
           /\ doubt /\ ~told /\ retry
           /\ WaitsForEvents => (transit = {} \/ EventsTooLate)
           /\ attempt < 3 /\ attempt' = attempt + 1
           /\ Book(Put(attempt, "unknown"), attempt + 1)
           /\ state' = "ready" /\ called' = FALSE /\ rung' = TRUE /\ UNCHANGED <<deferred, deferrals>>
           /\ against' = (against \/ AcceptanceSeen) /\ insisted' = (insisted \/ FirstRejected)
        \/ \* Tier 3: in doubt for good.
           /\ doubt /\ ~told /\ (~retry \/ ~RetriesFirst)
           /\ ends("unknown") /\ against' = (against \/ AcceptanceSeen) /\ UNCHANGED insisted
  /\ Unlease
  /\ UNCHANGED <<evidence, transit, wire, taken, pc, job, heard, faults, foreign, putOff, kept>>

\* LoseJob: the job that would ring is gone.
LoseJob ==
  /\ JobsLost /\ state = "ready" /\ rung /\ rung' = FALSE /\ Fault
  /\ UNCHANGED <<state, attempt, leasedBy, expired, called, deferred, deferrals, outcome, evidence, transit, wire, taken, pc, job, heard,
                 seen, holder, foreign, putOff, kept, against, insisted, ended>>
\* Sweep rings again.
Sweep ==
  /\ Sweeps /\ state = "ready" /\ ~rung /\ rung' = TRUE
  /\ UNCHANGED <<state, attempt, leasedBy, expired, called, deferred, deferrals, outcome, evidence, transit, wire, taken, pc, job, heard,
                 faults, seen, holder, foreign, putOff, kept, against, insisted, ended>>

Next ==
  \/ \E w \in Workers : Claim(w)
  \/ \E w \in Workers : Open(w)
  \/ \E w \in Workers : Send(w)
  \/ \E w \in Workers : GiveUp(w)
  \/ \E w \in Workers : Commit(w)
  \/ \E w \in Workers : Release(w)
  \/ \E w \in Workers : Record(w)
  \/ \E w \in Workers : Crash(w)
  \/ \E n \in Calls : Accept(n)
  \/ \E n \in Calls : Reject(n)
  \/ \E n \in Calls : Defer(n)
  \/ \E e \in Events : Visible(e)
  \/ \E e \in Events : LoseEvent(e)
  \/ LeaseEnds
  \/ ReapLook
  \/ Reap
  \/ LoseJob
  \/ Sweep

\* Nothing is asked of the carrier, of jobs or of luck: only that our own steps,
\* once they can be taken, are taken, and that time passes.
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
  /\ state \in {"ready", "leased", "done"} /\ attempt \in Calls /\ leasedBy \in Workers \union {Node, NoOne}
  /\ outcome \in [Calls -> {"none", "accepted", "rejected", "refused", "unknown", "first_rejected"}]
  /\ (state = "leased") = (leasedBy # NoOne)
  /\ evidence \subseteq Events /\ transit \subseteq Events
\* Whatever crashes, hangs or races: two messages at most.
BoundedSendCount == Delivered <= 2
\* With at_most_once: one at most, and no assumption is needed.
AtMostOnceStrategy == MaxAttempts = 1 => Delivered <= 1
\* With at_least_once: one at most while all four assumptions hold.
SingleSendUnderHealthyEvents == Delivered <= 1
\* A request of an attempt that is a message, or can still become one, is the only one.
OneWirePerAttempt == \A n \in Calls : wire[n] + taken[n] <= 1
\* A terminal status never changes.
TerminalStable == ended # "none" => Status = ended
\* Nobody but the claim that holds the lease writes.
OnlyOwnerCommits == ~foreign
\* sent: somebody got it. failed: nobody did.
StatusTruth == /\ Status = "sent" => Delivered >= 1
               /\ Status = "failed" => Delivered = 0
\* A row of the ledger says of its own attempt only what is so.
LedgerTruth == \A n \in Calls : /\ outcome[n] \in {"rejected", "first_rejected"} => taken[n] = 0
                                /\ outcome[n] = "accepted" => Delivered >= 1
\* orphaned only when every attempt that the strategy allows was made.
OrphanedMeansBudgetSpent == Status = "orphaned" => (attempt = MaxAttempts /\ outcome[MaxAttempts] # "none")
\* An answer that a worker heard and lived to deal with is on record.
AnswersAreKept == \A e \in kept : e \in evidence \/ outcome[e[1]] = e[2]
\* Nothing is called again, retried or given up while an acceptance lies before our eyes.
EvidenceIsHeeded == ~against
\* Nothing is called again while a rejection of its first attempt lies before our eyes: it has failed.
RejectionIsFinal == ~insisted
\* A row is put off as often as its cap says, whatever crashes.
PutOffWithinCap == putOff <= MaxDeferrals
\* At most one outcome per attempt is in the ledger, and a second only after an unknown first.
OneOutcomePerAttempt == outcome[2] # "none" => outcome[1] = "unknown"
\* Every notification ends.
EventuallyTerminal == <>(state = "done" /\ Status \in Terminal)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverOrphaned == Status # "orphaned"
NeverTwice == Delivered < 2
NeverStolen == ~\E w \in Workers : pc[w] = "lost"
NeverLateAccept == ~\E n \in Calls : taken[n] > 0 /\ outcome[n] = "unknown" /\ wire[n] = 0 /\ transit # {}
NeverSentByEvidence == ~(Status = "sent" /\ (\A w \in Workers : heard[w] # "accepted") /\ ~\E e \in kept : e[2] = "accepted")
NeverUnknownThenRejected == ~(outcome[1] = "unknown" /\ outcome[2] = "rejected")
NeverDeferredThenSent == ~(deferrals > 0 /\ Status = "sent")
NeverFailed == Status # "failed"
NeverSettledByClaim == ~(attempt = 2 /\ Status = "sent" /\ wire[2] + taken[2] = 0)
NeverFailedByClaim == outcome[2] # "first_rejected"
NeverBothRejected == ~(outcome[2] = "first_rejected" /\ <<2, "rejected">> \in evidence)
=============================================================================
