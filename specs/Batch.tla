-------------------------------- MODULE Batch --------------------------------
\* A batch of notifications under one lease: windows, partial results, retry
\* batches, and the gate that pause, cancel and the deadline write.
\*
\* Modelled: the rows of one origin in a root batch, the retry batches that the
\* reaper makes from it, the batches that a worker splits off for rows with an
\* unknown outcome so that the others can continue, commits window by window,
\* crashes between and within them, the gate of every batch, and both ledgers:
\* the outcome of each row, and the counters of the batches. A row is called
\* free if it was certainly not accepted under this lease, so that it may be
\* called again.
\*
\* Left out, and why that is sound:
\* - Evidence and late answers: SendingEngine.tla. Without them more outcomes
\*   are unknown, never fewer.
\* - A call is one step for a whole window. A crash within it is a crash after
\*   it whose answers are lost, since "timeout" is among the answers of each
\*   row.
\* - Due times other than those of rows that were deferred, jobs and rates: they
\*   delay a claim and forbid none.
\* - Tokens: as in SendingEngine.tla, a token is the name of the claim. It is
\*   reused only when no statement of the claim is in flight any more.
\* - Statements in flight other than the one that opens the next window: a
\*   statement that ends a claim removes its token, so it takes effect once.
\* - The number of crashes after which the reaper ends rows, and which row it
\*   finds: here any expired batch may lose one uncalled row, or all.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers,          \* claims that can be alive at the same time
  NoToken,          \* no token: leased_by is null
  Rows,             \* ordinals of the root batch, 1..n
  WindowSize,       \* rows of a window
  MaxAttempts,      \* 1 or 2
  Answers,          \* what a call may come to: accepted, rejected, deferred, lost (accepted without an answer), timeout (neither
                    \* accepted nor answered)
  Requests,         \* what users may request: hold, cancel
  MaxDeferrals,     \* how often a row is deferred before it ends as refused; 0: unlimited, and not counted
  Deadline,         \* TRUE: a send deadline may pass
  Resumes,          \* TRUE: a hold is followed by an unhold
  RowsCrash,        \* TRUE: the reaper may end rows, since the claims of their batch crashed several times in a row
  ConnectionsBreak, \* TRUE: a connection may break while its statement is in flight
  Faults,           \* how many crashes and early expiries there are ...
  UnlimitedFaults   \* ... TRUE: any number

CONSTANTS                \* Guards. TRUE in the design; each is FALSE in its own mutant
  CommitIsFenced,        \* every write of a worker needs the token
  OutcomeOnce,           \* the primary key of attempts: a statement that writes an outcome twice fails as a whole
  OpensFromLast,         \* a window opens only where the last one ended
  ChecksFirstTry,        \* a second try that does not apply checks what the first has done
  CountsRows,            \* the cap of deferrals counts each row, not its batch
  RowsWait,              \* a claim calls no row before its time
  OwnTimes,              \* ... which is its own: a batch is due with the first of its rows
  ClaimReadsDeadline,    \* no batch is claimed after its send deadline
  CallReadsDeadline,     \* no window is called after it
  ExpiresHeld,           \* a batch behind a held gate expires as well
  SkipsEnded,            \* only rows that have not ended are released
  WindowIsUnknown,       \* the reaper takes the outcome of rows within called_through as unknown
  BeyondIsFree,          \* ... but not of rows beyond it
  DeferredAreFree,       \* ... nor of rows that were certainly not accepted
  UncalledAreFree,       \* rows of a window that was opened and not called are not unknown
  UnknownKeepsLease,     \* rows with an unknown outcome stay leased until the reaper decides
  RestGoesBack,          \* ... and the other rows do not wait with them
  SplitMovesRows,        \* rows that are split off are no longer counted in their old batch
  SplitKeepsAttempt,     \* ... keep their attempt
  SplitCopiesGate,       \* ... and stay behind the same gate
  EndCheck,              \* the check batches_end: a batch ends only when every row is counted
  EndsUncalledOnly,      \* ... and after crashes it ends only rows that were not called
  RetryInSameTx,         \* the reaper makes the retry batch in the transaction that writes "unknown"
  KeepsOrdinals,         \* rows of a retry batch keep the ordinals of the root
  OpenReadsGate,         \* no window opens behind a closed gate
  RetryCopiesGate,       \* a retry batch gets its root's gate
  GateLocksFirst,        \* hold, unhold and cancel lock the batches first and then read them again
  CancelledIsNotRetried, \* the reaper makes no retry of a cancelled batch
  SecondIsOrphaned       \* a second attempt that is cancelled or expires is orphaned

VARIABLES
  status,           \* batch -> batches.status, "none" while the batch does not exist
  gate,             \* batch -> batches.gate
  rows,             \* batch -> the rows it was made of (batches.size is their number)
  open,             \* batch -> batches.open: rows that have not ended
  leasedBy,         \* batch -> batches.leased_by
  expired,          \* batch -> batches.lease_until has passed
  through,          \* batch -> batches.called_through
  deferred,         \* batch -> batches.deferred
  count,            \* batch -> its six counters
  ledger,           \* row -> attempt -> outcome; "retried" is unknown and not final
  currentBatch,     \* row -> its current batch, as the view finds it
  delivered,        \* row -> messages that reached the recipient
  deadlinePassed,   \* the send deadline has passed
  requested,        \* the last request of a user: open, held, resumed, cancelled
  snapshot,         \* the batches that a gate statement has read (mutant GateLocksFirst only)
  gateWrite,        \* ... and what it is about to write
  toRetry,          \* rows that wait for a retry batch (mutant RetryInSameTx only)
  pc,               \* claim -> where its goroutine is
  batchOf,          \* claim -> its batch
  todo,             \* claim -> rows that no window has contained yet
  window,           \* claim -> rows of the open window
  uncommitted,      \* claim -> row -> definite answer that is not committed yet
  free,             \* claim -> rows that were called and certainly not accepted
  unknown,          \* claim -> rows that were called and whose outcome is unknown
  refused,          \* row -> batches.refusals: how often it was deferred
  waits,            \* rows whose time in batches.retry_at has not come (only where deferrals are counted)
  notDue,           \* batches whose due_at has not come
  inFlight,         \* claim -> its statement in flight without an answer: <<batch, from, window, answers, free>>, or none
  faults,           \* faults left
  maybeCalled,      \* history: rows that may have been accepted without a recorded outcome, by what the workers did
  freeMadeUnknown,  \* history: the reaper has taken the outcome of a free row as unknown
  openedBehindGate, \* history: a window has opened behind a closed gate
  calledEarly,      \* history: a row was called before its time
  begunLate,        \* history: a claim or a call has begun after the send deadline
  abandoned,        \* history: a live claim has left a row leased whose outcome is not unknown
  ended             \* history: row -> its first terminal status

vars == <<status, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, delivered, deadlinePassed,
          requested, snapshot, gateWrite, toRetry, pc, batchOf, todo, window, uncommitted, free, unknown, refused, waits, notDue, inFlight,
          faults, maybeCalled, calledEarly, freeMadeUnknown, openedBehindGate, begunLate, abandoned, ended>>

N == Cardinality(Rows)
Batches == 0..(2 * N - 1)      \* 0 is the root; the first N are first attempts, the others second attempts
Attempt(b) == IF b < N THEN 1 ELSE 2
\* A batch of an attempt that does not exist yet.
NewBatch(n) == CHOOSE x \in Batches : Attempt(x) = n /\ (status[x] = "none" \/ x = n * N - 1)
Kinds == {"sent", "failed", "orphaned", "skipped", "cancelled", "retried"}
Ends == {"sent", "failed", "orphaned", "skipped", "cancelled"}
Sum(c) == c["sent"] + c["failed"] + c["orphaned"] + c["skipped"] + c["cancelled"] + c["retried"]
Live(b) == status[b] \in {"ready", "leased"}
\* The ordinal of a row of a batch in the ledger.
Ordinal(b, r) == IF KeepsOrdinals THEN r ELSE Cardinality({s \in rows[b] : s <= r})
\* The first rows of a set, as many as a window has.
NextWindow(s) == {r \in s : Cardinality({q \in s : q < r}) < WindowSize}
Last(s) == CHOOSE m \in s : \A r \in s : r <= m

\* The view notification_status for one row: l is the ledger, s the batches'
\* statuses, h the current batches.
StatusFrom(r, l, s, h) ==
  IF l[r][2] = "accepted" \/ l[r][1] = "accepted" THEN "sent"
  ELSE IF l[r][2] # "none" \/ l[r][1] = "unknown" THEN "orphaned"
  ELSE IF l[r][1] \in {"rejected", "refused"} THEN "failed"
  ELSE IF l[r][1] = "skipped" THEN "skipped"
  ELSE IF s[h[r]] \in {"cancelled", "expired"} /\ Attempt(h[r]) = 2 /\ SecondIsOrphaned THEN "orphaned"
  ELSE IF s[h[r]] = "cancelled" THEN "cancelled"
  ELSE IF s[h[r]] = "expired" THEN "skipped"
  ELSE "pending"
RowStatus(r) == StatusFrom(r, ledger, status, currentBatch)

Init ==
  /\ status = [b \in Batches |-> IF b = 0 THEN "ready" ELSE "none"]
  /\ gate = [b \in Batches |-> "open"]
  /\ rows = [b \in Batches |-> IF b = 0 THEN Rows ELSE {}]
  /\ open = rows
  /\ leasedBy = [b \in Batches |-> NoToken] /\ expired = [b \in Batches |-> FALSE]
  /\ through = [b \in Batches |-> 0] /\ deferred = [b \in Batches |-> {}]
  /\ count = [b \in Batches |-> [k \in Kinds |-> 0]]
  /\ ledger = [r \in Rows |-> [n \in {1, 2} |-> "none"]]
  /\ currentBatch = [r \in Rows |-> 0] /\ delivered = [r \in Rows |-> 0]
  /\ deadlinePassed = FALSE /\ requested = "open" /\ snapshot = {} /\ gateWrite = "nothing" /\ toRetry = {}
  /\ pc = [w \in Workers |-> "idle"] /\ batchOf = [w \in Workers |-> 0]
  /\ todo = [w \in Workers |-> {}] /\ window = [w \in Workers |-> {}] /\ free = [w \in Workers |-> {}]
  /\ uncommitted = [w \in Workers |-> [r \in Rows |-> "none"]] /\ unknown = [w \in Workers |-> {}]
  /\ refused = [r \in Rows |-> 0] /\ waits = {} /\ notDue = {} /\ calledEarly = FALSE
  /\ inFlight = [w \in Workers |-> {}] /\ faults = Faults
  /\ maybeCalled = {} /\ freeMadeUnknown = FALSE /\ openedBehindGate = FALSE /\ begunLate = FALSE /\ abandoned = FALSE
  /\ ended = [r \in Rows |-> "none"]

\* History: the first terminal status of every row.
RecordEnds == ended' = [r \in Rows |-> IF ended[r] # "none" THEN ended[r]
  ELSE IF StatusFrom(r, ledger', status', currentBatch') \in Ends THEN StatusFrom(r, ledger', status', currentBatch') ELSE "none"]
EndClaim(w) ==
  /\ pc' = [pc EXCEPT ![w] = "idle"] /\ batchOf' = [batchOf EXCEPT ![w] = 0] /\ todo' = [todo EXCEPT ![w] = {}]
  /\ window' = [window EXCEPT ![w] = {}]
  /\ uncommitted' = [uncommitted EXCEPT ![w] = [r \in Rows |-> "none"]] /\ free' = [free EXCEPT ![w] = {}]
  /\ unknown' = [unknown EXCEPT ![w] = {}]
Fault == /\ faults > 0 /\ faults' = IF UnlimitedFaults THEN faults ELSE faults - 1
MayCommit(w) == leasedBy[batchOf[w]] = w \/ ~CommitIsFenced

\* The ledger with the answers h to rows of batch b; a row that exists stays.
Written(b, h) == [r \in Rows |-> [n \in {1, 2} |->
  LET mine == {q \in Rows : h[q] # "none" /\ Ordinal(b, q) = r}
  IN IF n = Attempt(b) /\ ledger[r][n] = "none" /\ mine # {} THEN h[CHOOSE q \in mine : TRUE] ELSE ledger[r][n]]]
\* The counters with those answers, and with k more of a kind.
Counted(b, h, kind, k) ==
  LET got(what) == Cardinality({r \in Rows : h[r] = what})
      bad == got("rejected") + got("refused")
  IN [count EXCEPT ![b] = [x \in Kinds |->
       count[b][x] + (IF x = "sent" THEN got("accepted") ELSE 0)
                   + (IF x = "failed" /\ Attempt(b) = 1 THEN bad ELSE 0)
                   + (IF x = "orphaned" /\ Attempt(b) = 2 THEN bad ELSE 0)
                   + (IF x = kind THEN k ELSE 0)]]
\* The counts of refusals with the rows fr of batch b that were deferred under
\* this lease.
Refusals(b, fr) == [r \in Rows |-> refused[r] + IF MaxDeferrals > 0 /\ r \in fr \ deferred[b] THEN 1 ELSE 0]
\* The rows that wait for their time once the rows fr of batch b were deferred.
Waiting(b, fr) == waits \union (IF MaxDeferrals > 0 THEN fr \ deferred[b] ELSE {})
\* A batch that is given back with some rows is due later: with the first of them
\* (mutant OwnTimes: with the last).
DueLater(some, late) == IF OwnTimes THEN some \subseteq late ELSE \E r \in some : r \in late
\* The highest count of deferrals among the rows of a batch.
Most(b) == CHOOSE n \in 0..MaxDeferrals : (\E q \in rows[b] : refused[q] = n) /\ (\A q \in rows[b] : refused[q] <= n)
\* The count that the cap of a row is compared with: its own, or that of its
\* batch.
Deferrals(b, r) == IF CountsRows THEN refused[r] ELSE Most(b)
\* The end of rows without a call when their batch is cancelled or expires.
EndWithoutCall(b, what) == IF Attempt(b) = 2 /\ SecondIsOrphaned THEN "orphaned" ELSE IF what = "expired" THEN "skipped" ELSE "cancelled"

-----------------------------------------------------------------------------
\* Claim leases a ready batch with an open gate that is due, and reads its open
\* rows. It leaves those that wait for their time. (In the code, the commit of
\* the first window writes them to deferred; through is 0 until then.)
Claim(w, b) ==
  /\ pc[w] = "idle" /\ inFlight[w] = {} /\ status[b] = "ready" /\ gate[b] = "open" /\ b \notin notDue
  /\ (~deadlinePassed \/ ~ClaimReadsDeadline)
  /\ status' = [status EXCEPT ![b] = "leased"] /\ leasedBy' = [leasedBy EXCEPT ![b] = w] /\ expired' = [expired EXCEPT ![b] = FALSE]
  /\ through' = [through EXCEPT ![b] = 0]
  /\ \E left \in {{r \in open[b] : RowsWait /\ r \in waits}} :
       /\ deferred' = [deferred EXCEPT ![b] = left] /\ free' = [free EXCEPT ![w] = left]
       /\ todo' = [todo EXCEPT ![w] = open[b] \ left]
  /\ pc' = [pc EXCEPT ![w] = "between"] /\ batchOf' = [batchOf EXCEPT ![w] = b]
  /\ UNCHANGED <<gate, rows, open, count, ledger, currentBatch, delivered, deadlinePassed, requested, snapshot, gateWrite, toRetry,
                 window, uncommitted, unknown, faults, maybeCalled, freeMadeUnknown, openedBehindGate, ended, refused, inFlight,
                 abandoned, waits, notDue, calledEarly>>
  /\ begunLate' = (begunLate \/ deadlinePassed)

\* Commit that continues: one statement writes the answers h of the last window
\* and opens the window next. Behind a closed gate no window opens.
GateClosed(b) == gate[b] # "open" /\ OpenReadsGate
OpenWindow(b, next, h, fr) ==
  /\ ledger' = Written(b, h) /\ count' = Counted(b, h, "sent", 0) /\ refused' = Refusals(b, fr) /\ waits' = Waiting(b, fr)
  /\ deferred' = [deferred EXCEPT ![b] = fr] /\ expired' = [expired EXCEPT ![b] = FALSE]
  /\ through' = [through EXCEPT ![b] = IF GateClosed(b) THEN @ ELSE Last(next)]
  /\ maybeCalled' = (maybeCalled \ fr) \union (IF GateClosed(b) THEN {} ELSE next)
  /\ openedBehindGate' = (openedBehindGate \/ (~GateClosed(b) /\ requested \in {"held", "cancelled"}))
\* The worker continues after it: into the window, or not.
Continue(w, closed) == \E next \in {NextWindow(todo[w])} :
  /\ uncommitted' = [uncommitted EXCEPT ![w] = [r \in Rows |-> "none"]]
  /\ pc' = [pc EXCEPT ![w] = IF closed THEN "closed" ELSE "open"]
  /\ window' = [window EXCEPT ![w] = IF closed THEN {} ELSE next]
  /\ todo' = [todo EXCEPT ![w] = IF closed THEN @ ELSE @ \ next]
Open(w) ==
  /\ pc[w] = "between" /\ todo[w] # {} /\ MayCommit(w)
  /\ OpenWindow(batchOf[w], NextWindow(todo[w]), uncommitted[w], free[w]) /\ Continue(w, GateClosed(batchOf[w]))
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, currentBatch, delivered, deadlinePassed, requested, snapshot, gateWrite,
                 toRetry, batchOf, free, unknown, inFlight, faults, freeMadeUnknown, begunLate, abandoned, notDue, calledEarly>>
  /\ RecordEnds

\* LoseConnection: as Open, but the connection breaks and the answer never
\* arrives. The statement is in flight, or still running.
LastWindowEnd(w) == IF open[batchOf[w]] \ todo[w] = {} THEN 0 ELSE Last(open[batchOf[w]] \ todo[w])
LoseConnection(w) ==
  /\ ConnectionsBreak /\ pc[w] = "between" /\ todo[w] # {} /\ Fault
  /\ inFlight' = [inFlight EXCEPT ![w] = {<<batchOf[w], LastWindowEnd(w), NextWindow(todo[w]), uncommitted[w], free[w]>>}]
  /\ pc' = [pc EXCEPT ![w] = "disconnected"]
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, delivered,
                 deadlinePassed, requested, snapshot, gateWrite, toRetry, batchOf, todo, window, uncommitted, free, unknown,
                 refused, maybeCalled, freeMadeUnknown, openedBehindGate, begunLate, abandoned, ended, waits, notDue, calledEarly>>
\* The conditions of the statement: the token, the end of the last window, the
\* primary key.
Applies(w, b, from, h) ==
  /\ leasedBy[b] = w
  /\ through[b] = from \/ ~OpensFromLast
  /\ (\A r \in Rows : h[r] = "none" \/ ledger[r][Attempt(b)] = "none") \/ ~OutcomeOnce
\* Arrive: the statement is executed at last, or never.
Arrive(w) ==
  /\ \E f \in inFlight[w] :
       \/ Applies(w, f[1], f[2], f[4]) /\ OpenWindow(f[1], f[3], f[4], f[5])
       \/ UNCHANGED <<ledger, count, refused, deferred, expired, through, maybeCalled, openedBehindGate, waits>>
  /\ inFlight' = [inFlight EXCEPT ![w] = {}]
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, currentBatch, delivered, deadlinePassed, requested, snapshot, gateWrite,
                 toRetry, pc, batchOf, todo, window, uncommitted, free, unknown, faults, freeMadeUnknown, begunLate, abandoned,
                 notDue, calledEarly>>
  /\ RecordEnds
\* What the worker reads of the first try: its outcomes, or the window if there
\* are none.
WindowOpened(w) == through[batchOf[w]] = Last(NextWindow(todo[w]))
FirstTryDone(w) ==
  IF \A r \in Rows : uncommitted[w][r] = "none" THEN WindowOpened(w)
  ELSE (\E r \in Rows : uncommitted[w][r] # "none" /\ ledger[r][Attempt(batchOf[w])] # "none")
\* CheckFirstTry: before a second try the worker checks whether the first was
\* executed.
CheckFirstTry(w) ==
  /\ pc[w] = "disconnected" /\ MayCommit(w)
  /\ \/ FirstTryDone(w) /\ Continue(w, ~WindowOpened(w))
     \/ ~FirstTryDone(w) /\ pc' = [pc EXCEPT ![w] = "checked"] /\ UNCHANGED <<uncommitted, window, todo>>
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, delivered,
                 deadlinePassed, requested, snapshot, gateWrite, toRetry, batchOf, free, unknown, refused, inFlight, faults,
                 maybeCalled, freeMadeUnknown, openedBehindGate, begunLate, abandoned, ended, waits, notDue, calledEarly>>
\* SecondTry: if it does not apply, the first try was executed before it.
SecondTry(w) ==
  /\ pc[w] = "checked" /\ MayCommit(w)
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, currentBatch, delivered, deadlinePassed, requested, snapshot, gateWrite,
                 toRetry, inFlight, faults, freeMadeUnknown, begunLate, notDue, calledEarly>>
  /\ \E b \in {batchOf[w]} : \E applies \in {Applies(w, batchOf[w], LastWindowEnd(w), uncommitted[w])} :
       \/ /\ applies /\ OpenWindow(b, NextWindow(todo[w]), uncommitted[w], free[w]) /\ Continue(w, GateClosed(b))
          /\ UNCHANGED <<batchOf, free, unknown, abandoned>> /\ RecordEnds
       \/ /\ ~applies /\ ChecksFirstTry /\ Continue(w, ~WindowOpened(w))
          /\ UNCHANGED <<ledger, count, refused, deferred, expired, through, maybeCalled, openedBehindGate, batchOf, free, unknown,
                         abandoned, ended, waits>>
       \/ /\ ~applies /\ ~ChecksFirstTry /\ EndClaim(w) /\ abandoned' = TRUE
          /\ UNCHANGED <<ledger, count, refused, deferred, expired, through, maybeCalled, openedBehindGate, ended, waits>>

\* Send calls the rows of the window, outside any transaction, unless the send
\* deadline has passed in the meantime. A row at its cap ends as refused.
Send(w) ==
  /\ pc[w] = "open" /\ (~deadlinePassed \/ ~CallReadsDeadline)
  /\ \E got \in [window[w] -> Answers] :
     \E capped \in {{r \in window[w] : MaxDeferrals > 0 /\ got[r] = "deferred" /\ Deferrals(batchOf[w], r) >= MaxDeferrals}} :
       /\ delivered' = [r \in Rows |-> delivered[r] + IF r \in window[w] /\ got[r] \in {"accepted", "lost"} THEN 1 ELSE 0]
       /\ uncommitted' = [uncommitted EXCEPT ![w] = [r \in Rows |-> IF r \in capped THEN "refused"
            ELSE IF r \in window[w] /\ got[r] \in {"accepted", "rejected"} THEN got[r] ELSE "none"]]
       /\ free' = [free EXCEPT ![w] = @ \union {r \in window[w] \ capped : got[r] = "deferred"}]
       /\ unknown' = [unknown EXCEPT ![w] = @ \union {r \in window[w] : got[r] \in {"lost", "timeout"}}]
  /\ pc' = [pc EXCEPT ![w] = "between"] /\ window' = [window EXCEPT ![w] = {}]
  /\ begunLate' = (begunLate \/ deadlinePassed) /\ calledEarly' = (calledEarly \/ (\E r \in window[w] : r \in waits))
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, deadlinePassed,
                 requested, snapshot, gateWrite, toRetry, batchOf, todo, refused, inFlight, faults, maybeCalled, freeMadeUnknown,
                 openedBehindGate, abandoned, ended, waits, notDue>>
\* TooLate: the deadline has passed, and the open window is not called.
TooLate(w) ==
  /\ pc[w] = "open" /\ deadlinePassed /\ CallReadsDeadline
  /\ pc' = [pc EXCEPT ![w] = "closed"] /\ todo' = [todo EXCEPT ![w] = @ \union window[w]] /\ window' = [window EXCEPT ![w] = {}]
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, delivered,
                 deadlinePassed, requested, snapshot, gateWrite, toRetry, batchOf, uncommitted, free, unknown, refused, inFlight,
                 faults, maybeCalled, freeMadeUnknown, openedBehindGate, begunLate, abandoned, ended, waits, notDue, calledEarly>>

\* Commit that ends the claim (giveBack and finish in the code): after the last
\* window, behind a closed gate, or because the process shuts down (a fault).
\* The batch is done when every row has ended; otherwise the other rows are
\* released. Rows with an unknown outcome move to a batch of their own, which
\* stays leased for the reaper. If there are no other rows, the batch itself
\* stays leased.
Unknown(w, b) == IF UncalledAreFree THEN unknown[w]
                 ELSE {r \in open[b] : r <= through[b] /\ r \notin free[w] /\ uncommitted[w][r] = "none" /\ ledger[r][Attempt(b)] = "none"}
Release(w) ==
  /\ pc[w] \in {"between", "closed"} /\ MayCommit(w)
  /\ \E b \in {batchOf[w]} : \E kept \in {IF UnknownKeepsLease THEN Unknown(w, batchOf[w]) ELSE {}} :
     \E left \in {(todo[w] \union free[w]) \ kept} :
     \E stay \in {kept # {} /\ (left = {} \/ ~RestGoesBack)} : \E split \in {kept # {} /\ left # {} /\ RestGoesBack} :
     \E after \in {IF stay THEN "leased" ELSE IF left = {} THEN "done"
                    ELSE IF gate[batchOf[w]] = "cancelled" THEN "cancelled" ELSE "ready"} :
     \E own \in {NewBatch(IF SplitKeepsAttempt THEN Attempt(batchOf[w]) ELSE 1)} :
       /\ ledger' = Written(b, uncommitted[w]) /\ refused' = Refusals(b, free[w]) /\ waits' = Waiting(b, free[w])
       /\ notDue' = IF after = "ready" /\ DueLater(left, Waiting(b, free[w])) THEN notDue \union {b} ELSE notDue \ {b}
       /\ count' = Counted(b, uncommitted[w], EndWithoutCall(b, "cancelled"), IF after = "cancelled" THEN Cardinality(left) ELSE 0)
       /\ rows' = [x \in Batches |-> IF split /\ x = own THEN kept
                                    ELSE IF split /\ x = b /\ SplitMovesRows THEN rows[b] \ kept ELSE rows[x]]
       /\ (EndCheck /\ after = "done") => Sum(count'[b]) = Cardinality(rows'[b])
       /\ status' = [x \in Batches |-> IF x = b THEN after ELSE IF split /\ x = own THEN "leased" ELSE status[x]]
       /\ gate' = [gate EXCEPT ![own] = IF split /\ SplitCopiesGate THEN gate[b] ELSE @]
       /\ open' = [x \in Batches |-> IF split /\ x = own THEN kept
                                    ELSE IF x = b /\ after \in {"ready", "cancelled"} /\ SkipsEnded THEN left ELSE open[x]]
       /\ currentBatch' = [r \in Rows |-> IF split /\ r \in kept THEN own ELSE currentBatch[r]]
       /\ leasedBy' = [x \in Batches |-> IF split /\ x = own THEN w ELSE IF x = b /\ ~stay THEN NoToken ELSE leasedBy[x]]
       /\ expired' = [x \in Batches |-> IF x = b /\ ~stay THEN FALSE ELSE expired[x]]
       /\ through' = [x \in Batches |-> IF split /\ x = own THEN Last(kept) ELSE IF x = b /\ ~stay THEN 0 ELSE through[x]]
       /\ deferred' = [deferred EXCEPT ![b] = IF stay THEN left ELSE {}]
       /\ maybeCalled' = maybeCalled \ (todo[w] \union free[w])
       /\ abandoned' = (abandoned \/ (stay /\ left # {}))
  /\ \/ (todo[w] = {} \/ pc[w] = "closed") /\ UNCHANGED faults
     \/ ~(todo[w] = {} \/ pc[w] = "closed") /\ Fault
  /\ EndClaim(w)
  /\ UNCHANGED <<delivered, deadlinePassed, requested, snapshot, gateWrite, toRetry, freeMadeUnknown, openedBehindGate, inFlight,
                 begunLate, calledEarly>>
  /\ RecordEnds

\* Without the token nothing is written; the definite answers become evidence.
LoseLease(w) ==
  /\ pc[w] \in {"between", "closed", "disconnected", "checked"} /\ ~MayCommit(w) /\ EndClaim(w)
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, delivered,
                 deadlinePassed, requested, snapshot, gateWrite, toRetry, faults, refused, inFlight, maybeCalled, freeMadeUnknown,
                 openedBehindGate, begunLate, abandoned, ended, waits, notDue, calledEarly>>
Crash(w) ==
  /\ pc[w] # "idle" /\ Fault /\ EndClaim(w)
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, delivered,
                 deadlinePassed, requested, snapshot, gateWrite, toRetry, refused, inFlight, maybeCalled, freeMadeUnknown,
                 openedBehindGate, begunLate, abandoned, ended, waits, notDue, calledEarly>>

-----------------------------------------------------------------------------
\* LeaseEnds: lease_until passes, also while the holder is alive (a fault).
LeaseEnds(b) ==
  /\ status[b] = "leased" /\ ~expired[b] /\ expired' = [expired EXCEPT ![b] = TRUE]
  /\ LET live == \E w \in Workers : leasedBy[b] = w /\ batchOf[w] = b /\ pc[w] # "idle"
     IN \/ live /\ Fault
        \/ ~live /\ UNCHANGED faults
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, through, deferred, count, ledger, currentBatch, delivered, deadlinePassed,
                 requested, snapshot, gateWrite, toRetry, pc, batchOf, todo, window, uncommitted, free, unknown, refused, inFlight,
                 maybeCalled, freeMadeUnknown, openedBehindGate, begunLate, abandoned, ended, waits, notDue, calledEarly>>

\* Open rows without an outcome, and those of them whose outcome is unknown.
WithoutOutcome(b) == {r \in open[b] : ledger[r][Attempt(b)] = "none"}
UnknownRows(b) == {r \in WithoutOutcome(b) :
  /\ WindowIsUnknown
  /\ (r <= through[b] \/ ~BeyondIsFree)
  /\ (r \notin deferred[b] \/ ~DeferredAreFree)}
RetryAllowed(b) == Attempt(b) < MaxAttempts /\ ~deadlinePassed /\ (gate[b] # "cancelled" \/ ~CancelledIsNotRetried)

\* Reap divides the open rows of an expired batch in one transaction. Rows that
\* may have been called get a second attempt in a retry batch, or are orphaned;
\* the others are released. After crashes in a row the reaper also ends the row
\* that the last claim was rendering, or all that were not called. (A quantifier
\* over one element names a value.)
Endable(b) == IF EndsUncalledOnly THEN WithoutOutcome(b) \ UnknownRows(b) ELSE WithoutOutcome(b)
Crashed(b) == IF RowsCrash /\ gate[b] # "cancelled" THEN {{}, Endable(b)} \union {{r} : r \in Endable(b)} ELSE {{}}
Reap(b) ==
  /\ status[b] = "leased" /\ expired[b]
  /\ \E crashed \in Crashed(b) : \E called \in {UnknownRows(b) \ crashed} :
     \E rest \in {(WithoutOutcome(b) \ UnknownRows(b)) \ crashed} : \E retry \in {IF RetryAllowed(b) THEN called ELSE {}} :
     \E new \in {NewBatch(2)} : \E made \in {RetryInSameTx /\ retry # {}} :
     \E after \in {IF rest = {} THEN "done" ELSE IF gate[b] = "cancelled" THEN "cancelled" ELSE "ready"} :
       /\ status' = [x \in Batches |-> IF x = b THEN after ELSE IF made /\ x = new THEN "ready" ELSE status[x]]
       /\ open' = [x \in Batches |-> IF x = b THEN rest ELSE IF made /\ x = new THEN retry ELSE open[x]]
       /\ ledger' = [r \in Rows |-> [n \in {1, 2} |->
            IF n = Attempt(b) /\ r \in crashed THEN "skipped"
            ELSE IF n # Attempt(b) \/ r \notin called THEN ledger[r][n] ELSE IF r \in retry THEN "retried" ELSE "unknown"]]
       /\ currentBatch' = [r \in Rows |-> IF made /\ r \in retry THEN new ELSE currentBatch[r]]
       /\ rows' = [rows EXCEPT ![new] = IF made THEN retry ELSE @]
       /\ gate' = [gate EXCEPT ![new] = IF made /\ RetryCopiesGate THEN gate[b] ELSE @]
       /\ toRetry' = IF RetryInSameTx THEN toRetry ELSE toRetry \union retry
       /\ count' = [count EXCEPT ![b] = [x \in Kinds |->
            count[b][x] + (IF x = "orphaned" THEN Cardinality(called \ retry) ELSE 0)
                        + (IF x = "retried" THEN Cardinality(retry) ELSE 0)
                        + (IF x = EndWithoutCall(b, "expired") THEN Cardinality(crashed) ELSE 0)
                        + (IF x = EndWithoutCall(b, "cancelled") /\ after = "cancelled" THEN Cardinality(rest) ELSE 0)]]
       /\ notDue' = IF after = "ready" /\ DueLater(rest, waits) THEN notDue \union {b} ELSE notDue \ {b}
       /\ freeMadeUnknown' = (freeMadeUnknown \/ ~(called \subseteq maybeCalled))
  /\ leasedBy' = [leasedBy EXCEPT ![b] = NoToken] /\ expired' = [expired EXCEPT ![b] = FALSE]
  /\ through' = [through EXCEPT ![b] = 0] /\ deferred' = [deferred EXCEPT ![b] = {}]
  /\ maybeCalled' = maybeCalled \ open[b]
  /\ UNCHANGED <<delivered, deadlinePassed, requested, snapshot, gateWrite, pc, batchOf, todo, window, uncommitted, free, unknown,
                 faults, openedBehindGate, refused, inFlight, begunLate, abandoned, waits, calledEarly>>
  /\ RecordEnds

\* MakeRetry: a second transaction of the reaper (mutant RetryInSameTx only),
\* which does not happen if the reaper crashes.
MakeRetry ==
  /\ toRetry # {}
  /\ LET new == NewBatch(2)
     IN /\ status' = [status EXCEPT ![new] = "ready"] /\ rows' = [rows EXCEPT ![new] = toRetry] /\ open' = [open EXCEPT ![new] = toRetry]
        /\ currentBatch' = [r \in Rows |-> IF r \in toRetry THEN new ELSE currentBatch[r]]
  /\ toRetry' = {}
  /\ UNCHANGED <<gate, leasedBy, expired, through, deferred, count, ledger, delivered, deadlinePassed, requested, snapshot,
                 gateWrite, pc, batchOf, todo, window, uncommitted, free, unknown, faults, refused, inFlight, maybeCalled,
                 freeMadeUnknown, openedBehindGate, begunLate, abandoned, ended, waits, notDue, calledEarly>>

-----------------------------------------------------------------------------
\* Gates. Each is one transaction, and its guarantee begins with the commit.

\* TakeSnapshot: the snapshot of a gate statement that takes no lock first
\* (mutant GateLocksFirst only). A statement sees no row that is committed
\* after it began, not even while it waits for a lock.
TakeSnapshot(what) ==
  /\ ~GateLocksFirst /\ gateWrite = "nothing"
  /\ \/ what = "hold" /\ "hold" \in Requests /\ requested = "open"
     \/ what = "unhold" /\ requested = "held"
     \/ what = "cancel" /\ "cancel" \in Requests /\ requested # "cancelled"
  /\ gateWrite' = what /\ snapshot' = {b \in Batches : Live(b)}
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, delivered,
                 deadlinePassed, requested, toRetry, pc, batchOf, todo, window, uncommitted, free, unknown, faults, refused,
                 inFlight, maybeCalled, freeMadeUnknown, openedBehindGate, begunLate, abandoned, ended, waits, notDue, calledEarly>>
SeenBatches == IF GateLocksFirst THEN {b \in Batches : Live(b)} ELSE {b \in snapshot : Live(b)}
MayWrite(what) == IF GateLocksFirst THEN TRUE ELSE gateWrite = what
\* Hold closes the gates of all live batches.
Hold ==
  /\ "hold" \in Requests /\ requested = "open" /\ MayWrite("hold") /\ requested' = "held"
  /\ gate' = [b \in Batches |-> IF b \in SeenBatches /\ gate[b] = "open" THEN "held" ELSE gate[b]]
  /\ snapshot' = {} /\ gateWrite' = "nothing"
  /\ UNCHANGED <<status, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, delivered, deadlinePassed,
                 toRetry, pc, batchOf, todo, window, uncommitted, free, unknown, faults, refused, inFlight, maybeCalled,
                 freeMadeUnknown, openedBehindGate, begunLate, abandoned, ended, waits, notDue, calledEarly>>
\* Unhold opens them again.
Unhold ==
  /\ Resumes /\ requested = "held" /\ MayWrite("unhold") /\ requested' = "resumed"
  /\ gate' = [b \in Batches |-> IF b \in SeenBatches /\ gate[b] = "held" THEN "open" ELSE gate[b]]
  /\ snapshot' = {} /\ gateWrite' = "nothing"
  /\ UNCHANGED <<status, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, delivered, deadlinePassed,
                 toRetry, pc, batchOf, todo, window, uncommitted, free, unknown, faults, refused, inFlight, maybeCalled,
                 freeMadeUnknown, openedBehindGate, begunLate, abandoned, ended, waits, notDue, calledEarly>>
\* Cancel ends batches that are ready and closes the gates of those that are
\* leased.
Cancel ==
  /\ "cancel" \in Requests /\ requested # "cancelled" /\ MayWrite("cancel") /\ requested' = "cancelled"
  /\ \E seen \in {{b \in SeenBatches : gate[b] # "cancelled"}} :
     /\ gate' = [b \in Batches |-> IF b \in seen THEN "cancelled" ELSE gate[b]]
     /\ status' = [b \in Batches |-> IF b \in seen /\ status[b] = "ready" THEN "cancelled" ELSE status[b]]
     /\ count' = [b \in Batches |-> IF b \notin seen \/ status[b] # "ready" THEN count[b]
                   ELSE [count[b] EXCEPT ![EndWithoutCall(b, "cancelled")] = @ + Cardinality(open[b])]]
  /\ snapshot' = {} /\ gateWrite' = "nothing"
  /\ UNCHANGED <<rows, open, leasedBy, expired, through, deferred, ledger, currentBatch, delivered, deadlinePassed, toRetry, pc,
                 batchOf, todo, window, uncommitted, free, unknown, faults, maybeCalled, freeMadeUnknown, openedBehindGate, refused,
                 inFlight, begunLate, abandoned, waits, notDue, calledEarly>>
  /\ RecordEnds
\* DeadlinePasses: expires_at has passed.
DeadlinePasses ==
  /\ Deadline /\ ~deadlinePassed /\ deadlinePassed' = TRUE
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, delivered, requested,
                 snapshot, gateWrite, toRetry, pc, batchOf, todo, window, uncommitted, free, unknown, faults, refused, inFlight,
                 maybeCalled, freeMadeUnknown, openedBehindGate, begunLate, abandoned, ended, waits, notDue, calledEarly>>
\* Expire ends a batch that was not claimed in time, also behind a held gate.
Expire(b) ==
  /\ deadlinePassed /\ status[b] = "ready" /\ (gate[b] = "open" \/ ExpiresHeld)
  /\ status' = [status EXCEPT ![b] = "expired"]
  /\ count' = [count EXCEPT ![b] = [@ EXCEPT ![EndWithoutCall(b, "expired")] = @ + Cardinality(open[b])]]
  /\ UNCHANGED <<gate, rows, open, leasedBy, expired, through, deferred, ledger, currentBatch, delivered, deadlinePassed, requested,
                 snapshot, gateWrite, toRetry, pc, batchOf, todo, window, uncommitted, free, unknown, faults, maybeCalled,
                 freeMadeUnknown, openedBehindGate, refused, inFlight, begunLate, abandoned, waits, notDue, calledEarly>>
  /\ RecordEnds
\* TimePasses: the time of a row that was deferred has come.
TimePasses(r) ==
  /\ r \in waits /\ waits' = waits \ {r}
  /\ notDue' = {b \in notDue : DueLater(open[b], waits \ {r})}
  /\ UNCHANGED <<status, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, currentBatch, delivered, deadlinePassed,
                 requested, snapshot, gateWrite, toRetry, pc, batchOf, todo, window, uncommitted, free, unknown, faults, refused, inFlight,
                 maybeCalled, calledEarly, freeMadeUnknown, openedBehindGate, begunLate, abandoned, ended>>

Next ==
  \/ \E w \in Workers : \E b \in Batches : Claim(w, b)
  \/ \E w \in Workers : Open(w)
  \/ \E w \in Workers : LoseConnection(w)
  \/ \E w \in Workers : Arrive(w)
  \/ \E w \in Workers : CheckFirstTry(w)
  \/ \E w \in Workers : SecondTry(w)
  \/ \E w \in Workers : Send(w)
  \/ \E w \in Workers : TooLate(w)
  \/ \E w \in Workers : Release(w)
  \/ \E w \in Workers : LoseLease(w)
  \/ \E w \in Workers : Crash(w)
  \/ \E b \in Batches : LeaseEnds(b)
  \/ \E b \in Batches : Reap(b)
  \/ MakeRetry
  \/ \E what \in {"hold", "unhold", "cancel"} : TakeSnapshot(what)
  \/ Hold
  \/ Unhold
  \/ Cancel
  \/ DeadlinePasses
  \/ \E b \in Batches : Expire(b)
  \/ \E r \in Rows : TimePasses(r)

\* Lemma's own steps are taken, time passes, and a hold is followed by an
\* unhold.
Fairness ==
  /\ \A b \in Batches : /\ WF_vars(\E v \in Workers : Claim(v, b)) /\ WF_vars(LeaseEnds(b)) /\ WF_vars(Reap(b)) /\ WF_vars(Expire(b))
  /\ \A w \in Workers : /\ WF_vars(Open(w)) /\ WF_vars(Send(w)) /\ WF_vars(TooLate(w)) /\ WF_vars(LoseLease(w))
                        /\ WF_vars(Arrive(w)) /\ WF_vars(CheckFirstTry(w)) /\ WF_vars(SecondTry(w))
                        /\ WF_vars(Release(w) /\ todo[w] = {}) /\ WF_vars(Release(w) /\ pc[w] = "closed")
  /\ (\A r \in Rows : WF_vars(TimePasses(r))) /\ WF_vars(Unhold) /\ WF_vars(TakeSnapshot("unhold"))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state: a batch is leased exactly while it has a token.
TypeOK == \A b \in Batches : /\ (status[b] = "leased") = (leasedBy[b] # NoToken)
                             /\ open[b] \subseteq rows[b]
\* No recipient gets more messages than the strategy has attempts.
BoundedSendCount == \A r \in Rows : delivered[r] <= MaxAttempts
\* sent: the message arrived. failed, cancelled, skipped: it did not.
StatusTruth == \A r \in Rows : /\ RowStatus(r) = "sent" => delivered[r] >= 1
                               /\ RowStatus(r) \in {"failed", "cancelled", "skipped"} => delivered[r] = 0
\* A terminal status never changes.
TerminalStable == \A r \in Rows : ended[r] # "none" => RowStatus(r) = ended[r]
\* A row that has not ended is open in a live batch; a batch ends only when
\* every row has.
NoRowLeftBehind == \A r \in Rows :
  RowStatus(r) = "pending" => (\E b \in Batches : Live(b) /\ r \in open[b] /\ ledger[r][Attempt(b)] = "none")
\* The counters of the batches agree with the status of the rows, in every
\* state.
CountOf(b, k) == IF b \in Batches THEN count[b][k] ELSE 0
CountsBalance ==
  /\ \A b \in Batches : Sum(count[b]) <= Cardinality(rows[b])
  /\ \E now \in {[r \in Rows |-> RowStatus(r)]} : \A k \in Ends : Cardinality({r \in Rows : now[r] = k}) =
       CountOf(0, k) + CountOf(1, k) + CountOf(2, k) + CountOf(3, k) + CountOf(4, k) + CountOf(5, k)
\* The ledger is true of the notification that has the ordinal.
OneRowPerOrdinal == \A r \in Rows : (ledger[r][1] = "accepted" \/ ledger[r][2] = "accepted") => delivered[r] >= 1
\* Only rows of an open window have an unknown outcome.
OnlyWindowsAreUnknown == ~freeMadeUnknown
\* After hold or cancel has answered, no window opens.
NoWindowBehindGate == ~openedBehindGate
\* After the send deadline no batch is claimed and no window is called.
NothingBeginsLate == ~begunLate
\* A live claim leaves a row ended, released, or with an unknown outcome.
NoRowAbandoned == ~abandoned
\* A row that ends as refused was deferred as often as the cap allows.
RefusedAtCap == \A r \in Rows : (ledger[r][1] = "refused" \/ ledger[r][2] = "refused") => refused[r] >= MaxDeferrals
\* No row is called before its time.
NoRowIsCalledEarly == ~calledEarly
\* A batch is due as soon as one of its rows may be called.
NoRowWaitsForAnother == \A b \in notDue : status[b] = "ready" => open[b] \subseteq waits
\* After the send deadline every row ends, also behind a gate that stays held.
LateRowsEnd == deadlinePassed ~> (\A r \in Rows : RowStatus(r) \in Ends)
\* Every row ends.
EveryRowEnds == <>(\A r \in Rows : RowStatus(r) \in Ends)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverPartlyDone == ~\E r, q \in Rows : RowStatus(r) = "sent" /\ ledger[q][1] = "retried"
NeverTwoRetries == ~(N >= 2 /\ status[N] # "none" /\ status[N + 1] # "none")
NeverRetryBesideRoot == ~(status[0] = "leased" /\ status[N] = "leased")
NeverCalledBesideUnknown == ~(N >= 2 /\ status[1] = "leased" /\ \E w \in Workers : batchOf[w] = 0 /\ pc[w] = "open")
NeverSplitTwice == ~(N >= 2 /\ rows[1] # {} /\
  \E b \in Batches : Attempt(b) = 2 /\ status[b] = "leased" /\ \A w \in Workers : batchOf[w] # b)
NeverCancelledInFlight == ~\E w \in Workers : requested = "cancelled" /\ pc[w] = "open"
NeverOrphanedByCancel == ~\E r \in Rows : status[N] = "cancelled" /\ RowStatus(r) = "orphaned"
NeverExpired == ~\E r \in Rows : RowStatus(r) = "skipped"
NeverOneSkipped == ~\E r, q \in Rows : ledger[r][1] = "skipped" /\ RowStatus(q) = "sent"
NeverArrivesAfterCheck == ~\E w \in Workers : pc[w] = "checked" /\ MayCommit(w) /\ ~Applies(w, batchOf[w], LastWindowEnd(w), uncommitted[w])
NeverInFlightAfterAll == ~(\E w \in Workers : inFlight[w] # {} /\ pc[w] = "between" /\ todo[w] = {})
NeverRefused == ~\E r \in Rows : ledger[r][1] = "refused"
NeverCalledBesideWaiting == ~\E w \in Workers : pc[w] = "open" /\ (\E r \in free[w] : r \in waits) /\ count[batchOf[w]]["sent"] = 0
NeverHeldThenSent == ~(requested = "resumed" /\ \E r \in Rows : RowStatus(r) = "sent")
=============================================================================
