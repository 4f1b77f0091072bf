-------------------------------- MODULE Batch --------------------------------
\* A batch of notifications under one lease: windows, partial results, retry
\* batches, and the gate that pause, cancel and the deadline write.
\*
\* Modelled: the rows of one origin in a root batch, the retry batches that the
\* reaper makes of it, the batches that a worker makes of rows whose outcome is
\* unknown, so that the others go back at once, the worker's window by window commits, crashes between
\* and within them, the gate of every batch, and both ledgers: what each row's
\* outcome is, and what the counters of the batches say.
\*
\* Left out, and why that is sound:
\* - Evidence and late answers: SendingEngine.tla. Without them more is in unknown,
\*   never less.
\* - A call is one step for a whole window: a crash within it is a crash after it
\*   whose answers are lost, since "silence" is among the answers of each row.
\* - Due times, jobs and rates: they delay a claim and forbid none.
\* - Tokens: as in SendingEngine.tla, a token is the claim's own name. It is
\*   used again only when no statement of the claim is in flight any more.
\* - Statements in flight other than the one that goes on to the next window: one
\*   that ends a claim takes its token away, so that it happens once.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers,      \* claims that can be alive at the same time
  NoOne,        \* no token
  Rows,         \* ordinals of the root batch, 1..n
  Window,       \* rows of a window
  MaxAttempts,  \* 1 or 2
  Answers,      \* what calls may come to: accepted, rejected, deferred, ghost (taken, no answer), silence (not taken, no answer)
  Asks,         \* what people may do: hold, cancel
  MaxDeferrals, \* how often a row is put off before it ends as refused; 0: without end, and not counted
  Deadline,     \* TRUE: a send deadline may pass
  Resumes,      \* TRUE: who holds opens again
  Breaks,       \* TRUE: a connection may break while its statement is on the way
  Faults,       \* how many crashes and early expiries there are ...
  Endless       \* ... TRUE: without end

CONSTANTS       \* Guards. TRUE in the design; each is FALSE in its own mutant
  CommitIsGated,     \* every write of a worker needs the token
  OutcomeOnce,       \* the primary key of attempts: a statement that writes an outcome twice fails as a whole
  OpensFromLast,     \* a window opens only from where the last one ended
  AsksAgain,         \* a second try that meets the first asks what became of it
  CountsRows,        \* the cap of deferrals counts the row, not its batch
  ClaimReadsDeadline,\* no batch is claimed after its send deadline
  CallReadsDeadline, \* no window is called after it
  ExpiresHeld,       \* a batch expires behind a held gate as well
  SkipsEnded,        \* only rows without an end are given back
  DoubtIsTheWindow,  \* the reaper doubts what called_through covers
  BeyondIsFree,      \* ... and nothing beyond it
  DeferredAreFree,   \* ... nor what was surely not accepted
  UncalledAreFree,   \* rows of a window that was opened and not called are not unknown
  UnknownKeepsLease, \* rows whose outcome is unknown stay leased until the reaper decides
  RestGoesBack,      \* ... and the others do not wait with them
  SplitMovesRows,    \* rows that get a batch of their own are not counted in the one they were in
  SplitKeepsAttempt, \* ... and are under the same attempt there
  SplitCopiesGate,   \* ... behind the same gate
  EndCheck,          \* the check batches_end: a batch ends only with every row counted
  RetryInSameTx,     \* the reaper makes the retry batch in the transaction that writes "unknown"
  KeepsOrdinals,     \* rows of a retry batch keep the ordinals of the root
  OpenReadsGate,     \* no window opens behind a closed gate
  RetryCopiesGate,   \* a retry batch is born behind its root's gate
  GateLocksFirst,    \* hold, unhold and cancel lock the batches first and then look again
  ClosedIsNotRetried,\* the reaper makes no retry of a cancelled batch
  SecondIsOrphaned   \* a second attempt that is cancelled or expires is orphaned

VARIABLES
  state,     \* batch -> batches.state, "none" while there is no such batch
  gate,      \* batch -> batches.gate
  rows,      \* batch -> the rows it was made of (batches.size is their number)
  open,      \* batch -> batches.open: rows without an end
  leasedBy,  \* batch -> batches.leased_by
  expired,   \* batch -> batches.lease_until has passed
  through,   \* batch -> batches.called_through
  deferred,  \* batch -> batches.deferred
  count,     \* batch -> its six counters
  ledger,    \* row -> attempt -> outcome; "retried" is unknown and not final
  home,      \* row -> the batch that it is in now, as the view finds it
  delivered, \* row -> messages that reached the recipient
  late,      \* the send deadline has passed
  asked,     \* what people have asked for: open, held, open again, cancelled
  sight,     \* the batches that a gate statement has seen (mutant GateLocksFirst only)
  asking,    \* and what it is about to write
  owed,      \* rows that wait for a retry batch of their own (mutant RetryInSameTx only)
  pc,        \* claim -> where its goroutine is
  at,        \* claim -> its batch
  todo,      \* claim -> rows that no window has covered
  win,       \* claim -> rows of the open window
  hand,      \* claim -> row -> known answer that is not committed
  free,      \* claim -> rows that were called and surely not accepted
  unknown,   \* claim -> rows whose call has an unknown outcome
  refused,   \* row -> batches.refusals: how often it was put off
  flight,    \* claim -> its statement on the way whose answer never came: <<batch, from, window, answers, free>>, or none
  faults,    \* faults left
  covered,   \* history: rows that are in unknown, by what workers really did
  wronged,   \* history: the reaper has doubted a row that was free
  trespass,  \* history: a window has opened behind a closed gate
  overdue,   \* history: a claim or a call has begun after the send deadline
  deserted,  \* history: a living claim has left a row leased whose outcome is not unknown
  ended      \* history: row -> its first terminal status

vars == <<state, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, home, delivered, late, asked, sight, asking,
          owed, pc, at, todo, win, hand, free, unknown, refused, flight, faults, covered, wronged, trespass, overdue, deserted, ended>>

N == Cardinality(Rows)
Batches == 0..(2 * N - 1)      \* 0 is the root; the first N are of first attempts, the others of second
Attempt(b) == IF b < N THEN 1 ELSE 2
\* A batch of an attempt that is not there yet.
Fresh(n) == CHOOSE x \in Batches : Attempt(x) = n /\ (state[x] = "none" \/ x = n * N - 1)
Kinds == {"sent", "failed", "orphaned", "skipped", "cancelled", "retried"}
Ends == {"sent", "failed", "orphaned", "skipped", "cancelled"}
Sum(c) == c["sent"] + c["failed"] + c["orphaned"] + c["skipped"] + c["cancelled"] + c["retried"]
Alive(b) == state[b] \in {"ready", "leased"}
\* The ordinal under which a row of a batch is written into the ledger.
Ordinal(b, r) == IF KeepsOrdinals THEN r ELSE Cardinality({s \in rows[b] : s <= r})
\* The first rows of a set, as many as a window takes.
NextWindow(s) == {r \in s : Cardinality({q \in s : q < r}) < Window}
Last(s) == CHOOSE m \in s : \A r \in s : r <= m

\* The view notification_status for one row: l is the ledger, s the batches'
\* states, h the batch that the row is in.
StatusOf(r, l, s, h) ==
  IF l[r][2] = "accepted" \/ l[r][1] = "accepted" THEN "sent"
  ELSE IF l[r][2] # "none" \/ l[r][1] = "unknown" THEN "orphaned"
  ELSE IF l[r][1] \in {"rejected", "refused"} THEN "failed"
  ELSE IF s[h[r]] \in {"cancelled", "expired"} /\ Attempt(h[r]) = 2 /\ SecondIsOrphaned THEN "orphaned"
  ELSE IF s[h[r]] = "cancelled" THEN "cancelled"
  ELSE IF s[h[r]] = "expired" THEN "skipped"
  ELSE "pending"
Status(r) == StatusOf(r, ledger, state, home)

Init ==
  /\ state = [b \in Batches |-> IF b = 0 THEN "ready" ELSE "none"]
  /\ gate = [b \in Batches |-> "open"]
  /\ rows = [b \in Batches |-> IF b = 0 THEN Rows ELSE {}]
  /\ open = rows
  /\ leasedBy = [b \in Batches |-> NoOne] /\ expired = [b \in Batches |-> FALSE]
  /\ through = [b \in Batches |-> 0] /\ deferred = [b \in Batches |-> {}]
  /\ count = [b \in Batches |-> [k \in Kinds |-> 0]]
  /\ ledger = [r \in Rows |-> [n \in {1, 2} |-> "none"]]
  /\ home = [r \in Rows |-> 0] /\ delivered = [r \in Rows |-> 0]
  /\ late = FALSE /\ asked = "open" /\ sight = {} /\ asking = "nothing" /\ owed = {}
  /\ pc = [w \in Workers |-> "idle"] /\ at = [w \in Workers |-> 0]
  /\ todo = [w \in Workers |-> {}] /\ win = [w \in Workers |-> {}] /\ free = [w \in Workers |-> {}]
  /\ hand = [w \in Workers |-> [r \in Rows |-> "none"]] /\ unknown = [w \in Workers |-> {}]
  /\ refused = [r \in Rows |-> 0] /\ flight = [w \in Workers |-> {}] /\ faults = Faults
  /\ covered = {} /\ wronged = FALSE /\ trespass = FALSE /\ overdue = FALSE /\ deserted = FALSE /\ ended = [r \in Rows |-> "none"]

\* History: the first terminal status of every row.
Settle == ended' = [r \in Rows |-> IF ended[r] # "none" THEN ended[r]
                                  ELSE IF StatusOf(r, ledger', state', home') \in Ends THEN StatusOf(r, ledger', state', home') ELSE "none"]
Gone(w) ==
  /\ pc' = [pc EXCEPT ![w] = "idle"] /\ at' = [at EXCEPT ![w] = 0] /\ todo' = [todo EXCEPT ![w] = {}] /\ win' = [win EXCEPT ![w] = {}]
  /\ hand' = [hand EXCEPT ![w] = [r \in Rows |-> "none"]] /\ free' = [free EXCEPT ![w] = {}] /\ unknown' = [unknown EXCEPT ![w] = {}]
Fault == /\ faults > 0 /\ faults' = IF Endless THEN faults ELSE faults - 1
Ours(w) == leasedBy[at[w]] = w \/ ~CommitIsGated

\* The ledger with the answers h to rows of batch b; a row that is there stays.
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
\* The counts of refusals with the rows fr of batch b that were put off under this lease.
Refusals(b, fr) == [r \in Rows |-> refused[r] + IF MaxDeferrals > 0 /\ r \in fr \ deferred[b] THEN 1 ELSE 0]
\* How often a row counts as put off before it is called: by itself, or by the row that was put off most.
Most(b) == CHOOSE n \in 0..MaxDeferrals : (\E q \in rows[b] : refused[q] = n) /\ (\A q \in rows[b] : refused[q] <= n)
PutOff(b, r) == IF CountsRows THEN refused[r] ELSE Most(b)
\* What rows without a call end as when their batch is cancelled or expires.
Unsent(b, what) == IF Attempt(b) = 2 /\ SecondIsOrphaned THEN "orphaned" ELSE IF what = "expired" THEN "skipped" ELSE "cancelled"

-----------------------------------------------------------------------------
\* Claim leases a batch that is ready and let through, and reads its open rows.
Claim(w, b) ==
  /\ pc[w] = "idle" /\ flight[w] = {} /\ state[b] = "ready" /\ gate[b] = "open" /\ (~late \/ ~ClaimReadsDeadline)
  /\ state' = [state EXCEPT ![b] = "leased"] /\ leasedBy' = [leasedBy EXCEPT ![b] = w] /\ expired' = [expired EXCEPT ![b] = FALSE]
  /\ through' = [through EXCEPT ![b] = 0] /\ deferred' = [deferred EXCEPT ![b] = {}]
  /\ pc' = [pc EXCEPT ![w] = "between"] /\ at' = [at EXCEPT ![w] = b] /\ todo' = [todo EXCEPT ![w] = open[b]]
  /\ UNCHANGED <<gate, rows, open, count, ledger, home, delivered, late, asked, sight, asking, owed, win, hand, free, unknown, faults, covered, wronged, trespass, ended, refused, flight, deserted>>
  /\ overdue' = (overdue \/ late)

\* Commit, going on: the answers h of the last window are written and the window
\* next opens, in one statement. Behind a closed gate no window opens.
Shut(b) == gate[b] # "open" /\ OpenReadsGate
Opens(b, next, h, fr) ==
  /\ ledger' = Written(b, h) /\ count' = Counted(b, h, "sent", 0) /\ refused' = Refusals(b, fr)
  /\ deferred' = [deferred EXCEPT ![b] = fr] /\ expired' = [expired EXCEPT ![b] = FALSE]
  /\ through' = [through EXCEPT ![b] = IF Shut(b) THEN @ ELSE Last(next)]
  /\ covered' = (covered \ fr) \union (IF Shut(b) THEN {} ELSE next)
  /\ trespass' = (trespass \/ (~Shut(b) /\ asked \in {"held", "cancelled"}))
\* The worker goes on behind it: into the window, or not.
GoesOn(w, shut) == \E next \in {NextWindow(todo[w])} :
  /\ hand' = [hand EXCEPT ![w] = [r \in Rows |-> "none"]]
  /\ pc' = [pc EXCEPT ![w] = IF shut THEN "shut" ELSE "open"]
  /\ win' = [win EXCEPT ![w] = IF shut THEN {} ELSE next]
  /\ todo' = [todo EXCEPT ![w] = IF shut THEN @ ELSE @ \ next]
Open(w) ==
  /\ pc[w] = "between" /\ todo[w] # {} /\ Ours(w)
  /\ Opens(at[w], NextWindow(todo[w]), hand[w], free[w]) /\ GoesOn(w, Shut(at[w]))
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, home, delivered, late, asked, sight, asking, owed, at, free, unknown, flight, faults, wronged, overdue, deserted>>
  /\ Settle

\* Break: as Open, but the connection breaks and the answer never comes. The
\* statement is on its way, or still runs.
Known(w) == IF open[at[w]] \ todo[w] = {} THEN 0 ELSE Last(open[at[w]] \ todo[w])
Break(w) ==
  /\ Breaks /\ pc[w] = "between" /\ todo[w] # {} /\ Fault
  /\ flight' = [flight EXCEPT ![w] = {<<at[w], Known(w), NextWindow(todo[w]), hand[w], free[w]>>}]
  /\ pc' = [pc EXCEPT ![w] = "broken"]
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, home, delivered, late, asked, sight, asking,
                 owed, at, todo, win, hand, free, unknown, refused, covered, wronged, trespass, overdue, deserted, ended>>
\* What lets a statement do anything: the token, the window before, the primary key.
Fits(w, b, from, h) ==
  /\ leasedBy[b] = w
  /\ through[b] = from \/ ~OpensFromLast
  /\ (\A r \in Rows : h[r] = "none" \/ ledger[r][Attempt(b)] = "none") \/ ~OutcomeOnce
\* Land: the statement happens at last, or never.
Land(w) ==
  /\ \E f \in flight[w] :
       \/ Fits(w, f[1], f[2], f[4]) /\ Opens(f[1], f[3], f[4], f[5])
       \/ UNCHANGED <<ledger, count, refused, deferred, expired, through, covered, trespass>>
  /\ flight' = [flight EXCEPT ![w] = {}]
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, home, delivered, late, asked, sight, asking,
                 owed, pc, at, todo, win, hand, free, unknown, faults, wronged, overdue, deserted>>
  /\ Settle
\* What the worker reads of it: its outcomes, or where there are none the window.
Moved(w) == through[at[w]] = Last(NextWindow(todo[w]))
Landed(w) == IF \A r \in Rows : hand[w][r] = "none" THEN Moved(w) ELSE (\E r \in Rows : hand[w][r] # "none" /\ ledger[r][Attempt(at[w])] # "none")
\* Ask: before it tries again it asks whether the first try has happened.
Ask(w) ==
  /\ pc[w] = "broken" /\ Ours(w)
  /\ \/ Landed(w) /\ GoesOn(w, ~Moved(w))
     \/ ~Landed(w) /\ pc' = [pc EXCEPT ![w] = "asked"] /\ UNCHANGED <<hand, win, todo>>
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, home, delivered, late, asked, sight, asking,
                 owed, at, free, unknown, refused, flight, faults, covered, wronged, trespass, overdue, deserted, ended>>
\* TryAgain: the second try. Where it does not fit, the first has come before it.
TryAgain(w) ==
  /\ pc[w] = "asked" /\ Ours(w)
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, home, delivered, late, asked, sight, asking, owed, flight, faults, wronged, overdue>>
  /\ \E b \in {at[w]} : \E fits \in {Fits(w, at[w], Known(w), hand[w])} :
       \/ /\ fits /\ Opens(b, NextWindow(todo[w]), hand[w], free[w]) /\ GoesOn(w, Shut(b))
          /\ UNCHANGED <<at, free, unknown, deserted>> /\ Settle
       \/ /\ ~fits /\ AsksAgain /\ GoesOn(w, ~Moved(w))
          /\ UNCHANGED <<ledger, count, refused, deferred, expired, through, covered, trespass, at, free, unknown, deserted, ended>>
       \/ /\ ~fits /\ ~AsksAgain /\ Gone(w) /\ deserted' = TRUE
          /\ UNCHANGED <<ledger, count, refused, deferred, expired, through, covered, trespass, ended>>

\* Send calls the rows of the window, outside any transaction, unless the send
\* deadline has passed meanwhile. What is put off too often ends as refused.
Send(w) ==
  /\ pc[w] = "open" /\ (~late \/ ~CallReadsDeadline)
  /\ \E got \in [win[w] -> Answers] : \E over \in {{r \in win[w] : MaxDeferrals > 0 /\ got[r] = "deferred" /\ PutOff(at[w], r) >= MaxDeferrals}} :
       /\ delivered' = [r \in Rows |-> delivered[r] + IF r \in win[w] /\ got[r] \in {"accepted", "ghost"} THEN 1 ELSE 0]
       /\ hand' = [hand EXCEPT ![w] = [r \in Rows |-> IF r \in over THEN "refused" ELSE IF r \in win[w] /\ got[r] \in {"accepted", "rejected"} THEN got[r] ELSE "none"]]
       /\ free' = [free EXCEPT ![w] = @ \union {r \in win[w] \ over : got[r] = "deferred"}]
       /\ unknown' = [unknown EXCEPT ![w] = @ \union {r \in win[w] : got[r] \in {"ghost", "silence"}}]
  /\ pc' = [pc EXCEPT ![w] = "between"] /\ win' = [win EXCEPT ![w] = {}]
  /\ overdue' = (overdue \/ late)
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, home, late, asked, sight, asking, owed, at, todo,
                 refused, flight, faults, covered, wronged, trespass, deserted, ended>>
\* TooLate: the deadline has passed, and the open window is not called.
TooLate(w) ==
  /\ pc[w] = "open" /\ late /\ CallReadsDeadline
  /\ pc' = [pc EXCEPT ![w] = "shut"] /\ todo' = [todo EXCEPT ![w] = @ \union win[w]] /\ win' = [win EXCEPT ![w] = {}]
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, home, delivered, late, asked, sight, asking, owed, at,
                 hand, free, unknown, refused, flight, faults, covered, wronged, trespass, overdue, deserted, ended>>

\* Commit, ending (giveBack and finish in the code): after the last window,
\* behind a closed gate, or because the node shuts down (a fault). Done when every row
\* has its end; otherwise the rest goes back. Rows whose outcome is unknown move into
\* a batch of their own, which stays leased for the reaper; where there are no others
\* the batch itself stays so.
Unknown(w, b) == IF UncalledAreFree THEN unknown[w]
                 ELSE {r \in open[b] : r <= through[b] /\ r \notin free[w] /\ hand[w][r] = "none" /\ ledger[r][Attempt(b)] = "none"}
Release(w) ==
  /\ pc[w] \in {"between", "shut"} /\ Ours(w)
  /\ \E b \in {at[w]} : \E kept \in {IF UnknownKeepsLease THEN Unknown(w, at[w]) ELSE {}} : \E left \in {(todo[w] \union free[w]) \ kept} :
     \E stay \in {kept # {} /\ (left = {} \/ ~RestGoesBack)} : \E split \in {kept # {} /\ left # {} /\ RestGoesBack} :
     \E over \in {IF stay THEN "leased" ELSE IF left = {} THEN "done" ELSE IF gate[at[w]] = "cancelled" THEN "cancelled" ELSE "ready"} :
     \E own \in {Fresh(IF SplitKeepsAttempt THEN Attempt(at[w]) ELSE 1)} :
       /\ ledger' = Written(b, hand[w]) /\ refused' = Refusals(b, free[w])
       /\ count' = Counted(b, hand[w], Unsent(b, "cancelled"), IF over = "cancelled" THEN Cardinality(left) ELSE 0)
       /\ rows' = [x \in Batches |-> IF split /\ x = own THEN kept ELSE IF split /\ x = b /\ SplitMovesRows THEN rows[b] \ kept ELSE rows[x]]
       /\ (EndCheck /\ over = "done") => Sum(count'[b]) = Cardinality(rows'[b])
       /\ state' = [x \in Batches |-> IF x = b THEN over ELSE IF split /\ x = own THEN "leased" ELSE state[x]]
       /\ gate' = [gate EXCEPT ![own] = IF split /\ SplitCopiesGate THEN gate[b] ELSE @]
       /\ open' = [x \in Batches |-> IF split /\ x = own THEN kept
                                    ELSE IF x = b /\ over \in {"ready", "cancelled"} /\ SkipsEnded THEN left ELSE open[x]]
       /\ home' = [r \in Rows |-> IF split /\ r \in kept THEN own ELSE home[r]]
       /\ leasedBy' = [x \in Batches |-> IF split /\ x = own THEN w ELSE IF x = b /\ ~stay THEN NoOne ELSE leasedBy[x]]
       /\ expired' = [x \in Batches |-> IF x = b /\ ~stay THEN FALSE ELSE expired[x]]
       /\ through' = [x \in Batches |-> IF split /\ x = own THEN Last(kept) ELSE IF x = b /\ ~stay THEN 0 ELSE through[x]]
       /\ deferred' = [deferred EXCEPT ![b] = IF stay THEN left ELSE {}]
       /\ covered' = covered \ (todo[w] \union free[w])
       /\ deserted' = (deserted \/ (stay /\ left # {}))
  /\ \/ (todo[w] = {} \/ pc[w] = "shut") /\ UNCHANGED faults
     \/ ~(todo[w] = {} \/ pc[w] = "shut") /\ Fault
  /\ Gone(w)
  /\ UNCHANGED <<delivered, late, asked, sight, asking, owed, wronged, trespass, flight, overdue>>
  /\ Settle

\* Without the token nothing is written (the known answers become evidence).
Lost(w) ==
  /\ pc[w] \in {"between", "shut", "broken", "asked"} /\ ~Ours(w) /\ Gone(w)
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, home, delivered, late, asked, sight, asking, owed, faults, refused, flight, covered, wronged, trespass, overdue, deserted, ended>>
Crash(w) ==
  /\ pc[w] # "idle" /\ Fault /\ Gone(w)
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, home, delivered, late, asked, sight, asking, owed, refused, flight, covered, wronged, trespass, overdue, deserted, ended>>

-----------------------------------------------------------------------------
\* LeaseEnds: lease_until passes, also under a living holder (a fault).
LeaseEnds(b) ==
  /\ state[b] = "leased" /\ ~expired[b] /\ expired' = [expired EXCEPT ![b] = TRUE]
  /\ LET live == \E w \in Workers : leasedBy[b] = w /\ at[w] = b /\ pc[w] # "idle"
     IN \/ live /\ Fault
        \/ ~live /\ UNCHANGED faults
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, through, deferred, count, ledger, home, delivered, late, asked, sight, asking, owed,
                 pc, at, todo, win, hand, free, unknown, refused, flight, covered, wronged, trespass, overdue, deserted, ended>>

\* Open rows without an outcome, and those of them that may have been called.
Bare(b) == {r \in open[b] : ledger[r][Attempt(b)] = "none"}
Doubted(b) == {r \in Bare(b) : /\ DoubtIsTheWindow
                               /\ (r <= through[b] \/ ~BeyondIsFree)
                               /\ (r \notin deferred[b] \/ ~DeferredAreFree)}
Again(b) == Attempt(b) < MaxAttempts /\ ~late /\ (gate[b] # "cancelled" \/ ~ClosedIsNotRetried)

\* Reap parts the open rows of an expired batch: those that may have been called
\* get a second attempt in a retry batch of their own or are orphaned, the rest
\* goes back. One transaction. (A quantifier over one element names a value.)
Reap(b) ==
  /\ state[b] = "leased" /\ expired[b]
  /\ \E called \in {Doubted(b)} : \E rest \in {Bare(b) \ Doubted(b)} : \E retry \in {IF Again(b) THEN Doubted(b) ELSE {}} :
     \E fresh \in {Fresh(2)} : \E made \in {RetryInSameTx /\ retry # {}} :
     \E over \in {IF rest = {} THEN "done" ELSE IF gate[b] = "cancelled" THEN "cancelled" ELSE "ready"} :
       /\ state' = [x \in Batches |-> IF x = b THEN over ELSE IF made /\ x = fresh THEN "ready" ELSE state[x]]
       /\ open' = [x \in Batches |-> IF x = b THEN rest ELSE IF made /\ x = fresh THEN retry ELSE open[x]]
       /\ ledger' = [r \in Rows |-> [n \in {1, 2} |->
            IF n # Attempt(b) \/ r \notin called THEN ledger[r][n] ELSE IF r \in retry THEN "retried" ELSE "unknown"]]
       /\ home' = [r \in Rows |-> IF made /\ r \in retry THEN fresh ELSE home[r]]
       /\ rows' = [rows EXCEPT ![fresh] = IF made THEN retry ELSE @]
       /\ gate' = [gate EXCEPT ![fresh] = IF made /\ RetryCopiesGate THEN gate[b] ELSE @]
       /\ owed' = IF RetryInSameTx THEN owed ELSE owed \union retry
       /\ count' = [count EXCEPT ![b] = [x \in Kinds |->
            count[b][x] + (IF x = "orphaned" THEN Cardinality(called \ retry) ELSE 0)
                        + (IF x = "retried" THEN Cardinality(retry) ELSE 0)
                        + (IF x = Unsent(b, "cancelled") /\ over = "cancelled" THEN Cardinality(rest) ELSE 0)]]
       /\ wronged' = (wronged \/ ~(called \subseteq covered))
  /\ leasedBy' = [leasedBy EXCEPT ![b] = NoOne] /\ expired' = [expired EXCEPT ![b] = FALSE]
  /\ through' = [through EXCEPT ![b] = 0] /\ deferred' = [deferred EXCEPT ![b] = {}]
  /\ covered' = covered \ open[b]
  /\ UNCHANGED <<delivered, late, asked, sight, asking, pc, at, todo, win, hand, free, unknown, faults, trespass, refused, flight, overdue, deserted>>
  /\ Settle

\* MakeRetry: a second transaction of the reaper (mutant RetryInSameTx only),
\* which a crash of the reaper leaves out.
MakeRetry ==
  /\ owed # {}
  /\ LET fresh == Fresh(2)
     IN /\ state' = [state EXCEPT ![fresh] = "ready"] /\ rows' = [rows EXCEPT ![fresh] = owed] /\ open' = [open EXCEPT ![fresh] = owed]
        /\ home' = [r \in Rows |-> IF r \in owed THEN fresh ELSE home[r]]
  /\ owed' = {}
  /\ UNCHANGED <<gate, leasedBy, expired, through, deferred, count, ledger, delivered, late, asked, sight, asking,
                 pc, at, todo, win, hand, free, unknown, faults, refused, flight, covered, wronged, trespass, overdue, deserted, ended>>

-----------------------------------------------------------------------------
\* Gates. Each is one transaction; what it promises begins when it commits.

\* Look takes the snapshot of a gate statement that locks nothing first (mutant
\* GateLocksFirst only). A statement sees no row that is committed after it began,
\* not even while it waits for a lock.
Look(what) ==
  /\ ~GateLocksFirst /\ asking = "nothing"
  /\ \/ what = "hold" /\ "hold" \in Asks /\ asked = "open"
     \/ what = "unhold" /\ asked = "held"
     \/ what = "cancel" /\ "cancel" \in Asks /\ asked # "cancelled"
  /\ asking' = what /\ sight' = {b \in Batches : Alive(b)}
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, home, delivered, late, asked, owed,
                 pc, at, todo, win, hand, free, unknown, faults, refused, flight, covered, wronged, trespass, overdue, deserted, ended>>
Seen == IF GateLocksFirst THEN {b \in Batches : Alive(b)} ELSE {b \in sight : Alive(b)}
Ready(what) == IF GateLocksFirst THEN TRUE ELSE asking = what
\* Hold shuts the gates of all live batches.
Hold ==
  /\ "hold" \in Asks /\ asked = "open" /\ Ready("hold") /\ asked' = "held"
  /\ gate' = [b \in Batches |-> IF b \in Seen /\ gate[b] = "open" THEN "held" ELSE gate[b]]
  /\ sight' = {} /\ asking' = "nothing"
  /\ UNCHANGED <<state, rows, open, leasedBy, expired, through, deferred, count, ledger, home, delivered, late, owed,
                 pc, at, todo, win, hand, free, unknown, faults, refused, flight, covered, wronged, trespass, overdue, deserted, ended>>
\* Unhold opens them again.
Unhold ==
  /\ Resumes /\ asked = "held" /\ Ready("unhold") /\ asked' = "again"
  /\ gate' = [b \in Batches |-> IF b \in Seen /\ gate[b] = "held" THEN "open" ELSE gate[b]]
  /\ sight' = {} /\ asking' = "nothing"
  /\ UNCHANGED <<state, rows, open, leasedBy, expired, through, deferred, count, ledger, home, delivered, late, owed,
                 pc, at, todo, win, hand, free, unknown, faults, refused, flight, covered, wronged, trespass, overdue, deserted, ended>>
\* Cancel ends batches that are ready and shuts those that are leased.
Cancel ==
  /\ "cancel" \in Asks /\ asked # "cancelled" /\ Ready("cancel") /\ asked' = "cancelled"
  /\ \E seen \in {{b \in Seen : gate[b] # "cancelled"}} :
     /\ gate' = [b \in Batches |-> IF b \in seen THEN "cancelled" ELSE gate[b]]
     /\ state' = [b \in Batches |-> IF b \in seen /\ state[b] = "ready" THEN "cancelled" ELSE state[b]]
     /\ count' = [b \in Batches |-> IF b \notin seen \/ state[b] # "ready" THEN count[b]
                   ELSE [count[b] EXCEPT ![Unsent(b, "cancelled")] = @ + Cardinality(open[b])]]
  /\ sight' = {} /\ asking' = "nothing"
  /\ UNCHANGED <<rows, open, leasedBy, expired, through, deferred, ledger, home, delivered, late, owed,
                 pc, at, todo, win, hand, free, unknown, faults, covered, wronged, trespass, refused, flight, overdue, deserted>>
  /\ Settle
\* DeadlinePasses: expires_at is over.
DeadlinePasses ==
  /\ Deadline /\ ~late /\ late' = TRUE
  /\ UNCHANGED <<state, gate, rows, open, leasedBy, expired, through, deferred, count, ledger, home, delivered, asked, sight, asking, owed,
                 pc, at, todo, win, hand, free, unknown, faults, refused, flight, covered, wronged, trespass, overdue, deserted, ended>>
\* Expire ends a batch that was not claimed in time, also behind a held gate.
Expire(b) ==
  /\ late /\ state[b] = "ready" /\ (gate[b] = "open" \/ ExpiresHeld)
  /\ state' = [state EXCEPT ![b] = "expired"]
  /\ count' = [count EXCEPT ![b] = [@ EXCEPT ![Unsent(b, "expired")] = @ + Cardinality(open[b])]]
  /\ UNCHANGED <<gate, rows, open, leasedBy, expired, through, deferred, ledger, home, delivered, late, asked, sight, asking, owed,
                 pc, at, todo, win, hand, free, unknown, faults, covered, wronged, trespass, refused, flight, overdue, deserted>>
  /\ Settle

Next ==
  \/ \E w \in Workers : \E b \in Batches : Claim(w, b)
  \/ \E w \in Workers : Open(w)
  \/ \E w \in Workers : Break(w)
  \/ \E w \in Workers : Land(w)
  \/ \E w \in Workers : Ask(w)
  \/ \E w \in Workers : TryAgain(w)
  \/ \E w \in Workers : Send(w)
  \/ \E w \in Workers : TooLate(w)
  \/ \E w \in Workers : Release(w)
  \/ \E w \in Workers : Lost(w)
  \/ \E w \in Workers : Crash(w)
  \/ \E b \in Batches : LeaseEnds(b)
  \/ \E b \in Batches : Reap(b)
  \/ MakeRetry
  \/ \E what \in {"hold", "unhold", "cancel"} : Look(what)
  \/ Hold
  \/ Unhold
  \/ Cancel
  \/ DeadlinePasses
  \/ \E b \in Batches : Expire(b)

\* Our own steps are taken, time passes, and who pauses resumes.
Fairness ==
  /\ \A b \in Batches : /\ WF_vars(\E v \in Workers : Claim(v, b)) /\ WF_vars(LeaseEnds(b)) /\ WF_vars(Reap(b)) /\ WF_vars(Expire(b))
  /\ \A w \in Workers : /\ WF_vars(Open(w)) /\ WF_vars(Send(w)) /\ WF_vars(TooLate(w)) /\ WF_vars(Lost(w))
                        /\ WF_vars(Land(w)) /\ WF_vars(Ask(w)) /\ WF_vars(TryAgain(w))
                        /\ WF_vars(Release(w) /\ todo[w] = {}) /\ WF_vars(Release(w) /\ pc[w] = "shut")
  /\ WF_vars(Unhold) /\ WF_vars(Look("unhold"))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state: a lease and a token go together.
TypeOK == \A b \in Batches : /\ (state[b] = "leased") = (leasedBy[b] # NoOne)
                             /\ open[b] \subseteq rows[b]
\* No recipient gets more messages than the strategy has attempts.
BoundedSendCount == \A r \in Rows : delivered[r] <= MaxAttempts
\* sent: it arrived. failed, cancelled, skipped: it did not.
StatusTruth == \A r \in Rows : /\ Status(r) = "sent" => delivered[r] >= 1
                               /\ Status(r) \in {"failed", "cancelled", "skipped"} => delivered[r] = 0
\* A row that has ended stays as it ended.
TerminalStable == \A r \in Rows : ended[r] # "none" => Status(r) = ended[r]
\* A row without an end is in a live batch that knows of it; a batch ends only with every row.
NoRowLeftBehind == \A r \in Rows : Status(r) = "pending" => (\E b \in Batches : Alive(b) /\ r \in open[b] /\ ledger[r][Attempt(b)] = "none")
\* The counters of the batches and the status of the rows say the same, in every state.
CountOf(b, k) == IF b \in Batches THEN count[b][k] ELSE 0
CountsBalance ==
  /\ \A b \in Batches : Sum(count[b]) <= Cardinality(rows[b])
  /\ \E now \in {[r \in Rows |-> Status(r)]} : \A k \in Ends : Cardinality({r \in Rows : now[r] = k}) =
       CountOf(0, k) + CountOf(1, k) + CountOf(2, k) + CountOf(3, k) + CountOf(4, k) + CountOf(5, k)
\* What the ledger says under an ordinal is so of the notification that has it.
OneRowPerOrdinal == \A r \in Rows : (ledger[r][1] = "accepted" \/ ledger[r][2] = "accepted") => delivered[r] >= 1
\* Only what stood in an open window is ever in doubt.
OnlyWindowsAreInDoubt == ~wronged
\* After hold or cancel has answered no window opens.
NoWindowBehindGate == ~trespass
\* After the send deadline no batch is claimed and no window is called.
NothingBeginsLate == ~overdue
\* A claim that lives leaves a row only at its end, given back, lost or with an unknown outcome.
NothingDeserted == ~deserted
\* Who ends as refused was put off as often as the cap says.
RefusedInFull == \A r \in Rows : (ledger[r][1] = "refused" \/ ledger[r][2] = "refused") => refused[r] >= MaxDeferrals
\* After the send deadline every row ends, also behind a gate that nobody opens again.
LateRowsEnd == late ~> (\A r \in Rows : Status(r) \in Ends)
\* Every row ends.
EveryRowEnds == <>(\A r \in Rows : Status(r) \in Ends)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverPartlyDone == ~\E r, q \in Rows : Status(r) = "sent" /\ ledger[q][1] = "retried"
NeverTwoRetries == ~(N >= 2 /\ state[N] # "none" /\ state[N + 1] # "none")
NeverRetryBesideRoot == ~(state[0] = "leased" /\ state[N] = "leased")
NeverCalledBesideUnknown == ~(N >= 2 /\ state[1] = "leased" /\ \E w \in Workers : at[w] = 0 /\ pc[w] = "open")
NeverSplitTwice == ~(N >= 2 /\ rows[1] # {} /\ \E b \in Batches : Attempt(b) = 2 /\ state[b] = "leased" /\ \A w \in Workers : at[w] # b)
NeverCancelledInFlight == ~\E w \in Workers : asked = "cancelled" /\ pc[w] = "open"
NeverOrphanedByCancel == ~\E r \in Rows : state[N] = "cancelled" /\ Status(r) = "orphaned"
NeverExpired == ~\E r \in Rows : Status(r) = "skipped"
NeverLandsAfterTheLook == ~\E w \in Workers : pc[w] = "asked" /\ Ours(w) /\ ~Fits(w, at[w], Known(w), hand[w])
NeverInFlightAfterAll == ~(\E w \in Workers : flight[w] # {} /\ pc[w] = "between" /\ todo[w] = {})
NeverRefused == ~\E r \in Rows : ledger[r][1] = "refused"
NeverHeldThenSent == ~(asked = "again" /\ \E r \in Rows : Status(r) = "sent")
=============================================================================
