------------------------------- MODULE Release -------------------------------
\* Pause and resume of an origin with many batches: a resume opens some of them,
\* and pages open the others in transactions of their own.
\*
\* Modelled: the batches of one origin and those that a worker or the reaper makes
\* from them, one from another; pauses and resumes one after the other; processes
\* that open pages; statements that see what was committed when they began, wait
\* for locks, and read each batch again before they change it; the row in releases;
\* and transactions that are rolled back at any step.
\*
\* Left out, and why that is sound:
\* - Windows, leases and attempts: Batch.tla. A gate that is open here is one
\*   behind which a window may open.
\* - Cancel: it closes gates for good, with the statement of a pause.
\* - Locks of a statement one by one: a statement takes all its locks in one step.
\*   It holds none while it waits, so that others do more meanwhile.
\* - Batches that a fan-out or a flow writes: they read the status of their origin
\*   under a lock that excludes a pause.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Roots,     \* batches of the origin, 1..n; each has a chain of successors
  Chain,     \* how many batches are made from a root, one from another
  Pages,     \* processes that open pages
  Makers,    \* workers and reapers that make a batch from another
  PageSize,  \* batches that a resume opens, and each page
  Requests,  \* pauses and resumes, after a first pause
  RollBacks  \* how many transactions are rolled back

CONSTANTS            \* Guards. TRUE in the design; each is FALSE in its own mutant
  RecordsRest,       \* a resume records that held batches are left
  PauseEndsRelease,  \* a pause deletes that row
  DeletesFirst,      \* ... before it closes gates, so that it waits for a page and no other follows
  PageLocksRow,      \* a page locks the row
  EndReadsHeld,      \* a page deletes the row only if no batch is held
  RepeatsUntilNone,  \* a pause closes gates until a read finds none that is open
  ReadsWithoutLock,  \* that read, and the one for held batches, see a batch whose successor is not committed
  MakesWithGate      \* a batch that is made gets the gate of the one that it is made from

VARIABLES
  status,    \* batch -> none, live, ended
  gate,      \* batch -> open, held
  row,       \* the origin has a row in releases
  asked,     \* the last request that has committed: pause, resume
  left,      \* requests left
  rollBacks, \* rollbacks left
  lock,      \* batch -> the transaction that has locked it, or none
  rowLock,   \* the transaction that has locked the row, or none
  pc,        \* transaction -> its next statement
  aim,       \* transaction -> batches that its statement has found when it began
  wrote,     \* transaction -> batches that it has changed, or has made
  rowAfter   \* transaction -> what it does to the row: keep, insert, delete

vars == <<status, gate, row, asked, left, rollBacks, lock, rowLock, pc, aim, wrote, rowAfter>>

N == Cardinality(Roots)
Batches == 1..(N * (1 + Chain))
Next1(b) == b + N   \* the batch that is made from b
Txs == {"user"} \union Pages \union Makers
Free == "free"

Init ==
  /\ status = [b \in Batches |-> IF b \in Roots THEN "live" ELSE "none"] /\ gate = [b \in Batches |-> "held"]
  /\ row = FALSE /\ asked = "pause" /\ left = Requests /\ rollBacks = RollBacks
  /\ lock = [b \in Batches |-> Free] /\ rowLock = Free
  /\ pc = [t \in Txs |-> "idle"] /\ aim = [t \in Txs |-> {}] /\ wrote = [t \in Txs |-> {}] /\ rowAfter = [t \in Txs |-> "keep"]

\* The gate that transaction t gives to the batches that it changes.
To(x) == IF x = "user" /\ asked = "resume" THEN "held" ELSE "open"
\* The gate of a batch as transaction t sees it.
GateFor(x, y) == IF y \in wrote[x] THEN To(x) ELSE gate[y]
\* Live batches with a gate, as a statement of t sees them.
Found(t, g) == {b \in Batches : status[b] = "live" /\ GateFor(t, b) = g}
First(s) == {q \in s : Cardinality({m \in s : m < q}) < PageSize}
\* A read of what is left. A mutant waits for locks, and leaves out what ends.
Left(t, g) == IF ReadsWithoutLock THEN Found(t, g) ELSE {b \in Found(t, g) : lock[b] \in {Free, t}}

Ends(t) ==
  /\ lock' = [b \in Batches |-> IF lock[b] = t THEN Free ELSE lock[b]] /\ rowLock' = (IF rowLock = t THEN Free ELSE rowLock)
  /\ pc' = [pc EXCEPT ![t] = "idle"] /\ aim' = [aim EXCEPT ![t] = {}] /\ wrote' = [wrote EXCEPT ![t] = {}]
  /\ rowAfter' = [rowAfter EXCEPT ![t] = "keep"]
Commits(t) ==
  /\ gate' = [b \in Batches |-> IF b \in wrote[t] THEN To(t) ELSE gate[b]]
  /\ row' = (IF rowAfter[t] = "insert" THEN TRUE ELSE IF rowAfter[t] = "delete" THEN FALSE ELSE row)
  /\ Ends(t)

-----------------------------------------------------------------------------
\* Begin: a pause after a resume, a resume after a pause.
Begin ==
  /\ pc["user"] = "idle" /\ left > 0 /\ left' = left - 1
  /\ pc' = [pc EXCEPT !["user"] = IF asked = "resume" /\ DeletesFirst THEN "delete" ELSE "find"]
  /\ UNCHANGED <<status, gate, row, asked, rollBacks, lock, rowLock, aim, wrote, rowAfter>>
\* Delete: a pause deletes the row, and waits for a page that has locked it.
Delete ==
  /\ pc["user"] = "delete" /\ rowLock = Free
  /\ rowLock' = (IF row THEN "user" ELSE Free)
  /\ rowAfter' = [rowAfter EXCEPT !["user"] = IF row /\ PauseEndsRelease THEN "delete" ELSE "keep"]
  /\ pc' = [pc EXCEPT !["user"] = IF DeletesFirst THEN "find" ELSE "commit"]
  /\ UNCHANGED <<status, gate, row, asked, left, rollBacks, lock, aim, wrote>>
\* OpenPage: a process locks the row, if nobody has.
OpenPage(p) ==
  /\ pc[p] = "idle" /\ row /\ (rowLock = Free \/ ~PageLocksRow)
  /\ rowLock' = (IF PageLocksRow THEN p ELSE rowLock) /\ pc' = [pc EXCEPT ![p] = "find"]
  /\ UNCHANGED <<status, gate, row, asked, left, rollBacks, lock, aim, wrote, rowAfter>>
\* Find: an update of gates begins: its snapshot.
Find(t) ==
  /\ pc[t] = "find"
  /\ aim' = [aim EXCEPT ![t] = IF To(t) = "held" THEN Found(t, "open") ELSE First(Found(t, "held"))]
  /\ pc' = [pc EXCEPT ![t] = "change"]
  /\ UNCHANGED <<status, gate, row, asked, left, rollBacks, lock, rowLock, wrote, rowAfter>>
\* Change: it has its locks, and changes what is still to be changed.
Change(t) ==
  /\ pc[t] = "change" /\ \A b \in aim[t] : lock[b] \in {Free, t}
  /\ \E changed \in {{b \in aim[t] : status[b] = "live" /\ GateFor(t, b) # To(t)}} :
       /\ wrote' = [wrote EXCEPT ![t] = @ \union changed]
       /\ lock' = [b \in Batches |-> IF b \in changed THEN t ELSE lock[b]]
  /\ aim' = [aim EXCEPT ![t] = {}] /\ pc' = [pc EXCEPT ![t] = "look"]
  /\ UNCHANGED <<status, gate, row, asked, left, rollBacks, rowLock, rowAfter>>
\* Look: a pause repeats the update while a gate is open; a resume and a page
\* record whether a batch is held.
LookOpen ==
  /\ pc["user"] = "look" /\ To("user") = "held"
  /\ pc' = [pc EXCEPT !["user"] = IF Left("user", "open") # {} /\ RepeatsUntilNone THEN "find"
                                  ELSE IF DeletesFirst THEN "commit" ELSE "delete"]
  /\ UNCHANGED <<status, gate, row, asked, left, rollBacks, lock, rowLock, aim, wrote, rowAfter>>
LookHeld(t) ==
  /\ pc[t] = "look" /\ To(t) = "open"
  /\ rowAfter' = [rowAfter EXCEPT ![t] = IF t = "user" THEN (IF Left(t, "held") # {} /\ RecordsRest THEN "insert" ELSE "keep")
                                         ELSE (IF Left(t, "held") = {} \/ ~EndReadsHeld THEN "delete" ELSE "keep")]
  /\ pc' = [pc EXCEPT ![t] = "commit"]
  /\ UNCHANGED <<status, gate, row, asked, left, rollBacks, lock, rowLock, aim, wrote>>
\* Commit of a page, and of a pause or resume, which is answered then.
CommitPage(p) == pc[p] = "commit" /\ Commits(p) /\ UNCHANGED <<status, asked, left, rollBacks>>
CommitUser ==
  /\ pc["user"] = "commit" /\ Commits("user") /\ asked' = (IF asked = "pause" THEN "resume" ELSE "pause")
  /\ UNCHANGED <<status, left, rollBacks>>
\* Make: a worker or the reaper locks a batch, makes the next from it and ends it.
Make(m, b) ==
  /\ pc[m] = "idle" /\ Next1(b) \in Batches /\ status[b] = "live" /\ lock[b] = Free
  /\ lock' = [lock EXCEPT ![b] = m] /\ aim' = [aim EXCEPT ![m] = {b}] /\ pc' = [pc EXCEPT ![m] = "made"]
  /\ UNCHANGED <<status, gate, row, asked, left, rollBacks, rowLock, wrote, rowAfter>>
Made(m) ==
  /\ pc[m] = "made"
  /\ \E b \in aim[m] :
       /\ status' = [status EXCEPT ![b] = "ended", ![Next1(b)] = "live"]
       /\ gate' = [gate EXCEPT ![Next1(b)] = IF MakesWithGate THEN gate[b] ELSE "open"]
  /\ Ends(m) /\ UNCHANGED <<row, asked, left, rollBacks>>
\* RollBack: the process of a transaction is killed. Of a request it is repeated.
RollBack(t) ==
  /\ pc[t] # "idle" /\ rollBacks > 0 /\ rollBacks' = rollBacks - 1 /\ left' = (IF t = "user" THEN left + 1 ELSE left)
  /\ Ends(t) /\ UNCHANGED <<status, gate, row, asked>>

Next ==
  \/ Begin
  \/ Delete
  \/ \E p \in Pages : OpenPage(p)
  \/ \E t \in Txs : Find(t)
  \/ \E t \in Txs : Change(t)
  \/ LookOpen
  \/ \E t \in Txs : LookHeld(t)
  \/ \E p \in Pages : CommitPage(p)
  \/ CommitUser
  \/ \E m \in Makers : \E b \in Batches : Make(m, b)
  \/ \E m \in Makers : Made(m)
  \/ \E t \in Txs : RollBack(t)

\* Transactions end, and pages are opened.
Fairness ==
  /\ WF_vars(Delete) /\ WF_vars(LookOpen) /\ WF_vars(CommitUser)
  /\ \A t \in Txs : WF_vars(Find(t)) /\ WF_vars(Change(t)) /\ WF_vars(LookHeld(t))
  /\ \A p \in Pages : WF_vars(OpenPage(p)) /\ WF_vars(CommitPage(p))
  /\ \A m \in Makers : WF_vars(Made(m))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == /\ asked \in {"pause", "resume"} /\ \A b \in Batches : lock[b] \in (Txs \union {Free})
          /\ \A b \in Batches : lock[b] = Free \/ pc[lock[b]] # "idle"
\* From the answer of a pause to the commit of a resume no gate is open.
PausedIsHeld == asked # "pause" \/ \A b \in Batches : status[b] # "live" \/ gate[b] = "held"
\* After the last resume every gate is opened, unless a pause follows.
EveryBatchOpens == (asked = "resume") ~> (asked = "pause" \/ \A b \in Batches : status[b] # "live" \/ gate[b] = "open")

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverTwoPages == ~(\E p \in Pages : pc[p] # "idle" /\ rowAfter[p] = "keep" /\ wrote[p] # {} /\ \E b \in Batches : gate[b] = "open")
NeverPausedBetweenPages == ~(pc["user"] = "commit" /\ rowAfter["user"] = "delete" /\ \E b \in Batches : gate[b] = "open")
NeverRepeats == ~(pc["user"] = "find" /\ asked = "resume" /\ wrote["user"] # {})
NeverAllOpen == ~(asked = "resume" /\ ~row /\ \A b \in Batches : status[b] # "live" \/ gate[b] = "open")
=============================================================================
