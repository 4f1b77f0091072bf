------------------------------ MODULE Campaign -------------------------------
\* A campaign from preparing to its end: fan-out, pause, cancel, failure, completion.
\*
\* Modelled: runs of the fan-out, each with the lease that it took (which may
\* lapse while the run goes on, so that two run at the same time), that look at
\* the campaign, begin to send, read the audience in chunks, crash, and find
\* that the source fails; people of whom the last two share an address; senders
\* reduced to "a window opens" and "it ends"; a person who pauses, resumes and
\* cancels; completion, in the two steps that a database makes of it.
\*
\* Left out, and why that is sound:
\* - What becomes of a call: Batch.tla and SendingEngine.tla. Here a window ends.
\* - Batches of several rows: here each row has a batch of its own, so that more
\*   can happen, not less.
\* - Scheduling and the draft come before the first look.
\* - The clock: a lease that has run out is one that another run may take. Who
\*   finds its token gone stops (Lose), at whatever moment.
\* - The claim and the look that follows it are one step here, in whatever status
\*   the campaign is: the real claim lets less through.
\* - Reading an audience again for people who have waited for long ends rows
\*   as sending does, and is in the tests of sender.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Fanouts,          \* runs of the fan-out: numbers from 1
  People,           \* 1..n, in the order in which the audience is read
  Stranger,         \* a number above n: somebody who is not in the audience
  Chunk,            \* people of a chunk
  Asks,             \* what people may do: pause, cancel
  Crashes,          \* how many crashes there are
  Lapses,           \* how often a lease runs out of a run that goes on
  Failures,         \* how often a run finds that the source fails for good
  Fickle,           \* people who are in the audience for one run and not for another
  Movers            \* people whose address differs from run to run

CONSTANTS           \* Guards. TRUE in the design; each is FALSE in its own mutant
  UniqueKey,        \* the primary key of notifications: (campaign, channel, address)
  ReadsAudience,    \* the fan-out writes who is in the audience, and nobody else
  BeginsByRow,      \* begin goes by the campaign's row in its own statement, not by what the run saw before
  ChunkLocksStatus, \* WriteChunk reads the status under a share lock, in its transaction
  ChunkNeedsSending,\* ... and writes only while the campaign is sending, not before it was begun
  ChunkIsAtomic,    \* notification, batch and chunk line are one transaction
  FinishesAtEnd,    \* the fan-out is finished only when the whole audience was read
  RunsAgain,        \* a fan-out that crashed is rung for again
  FailIsFenced,     \* a run fails the campaign only while it holds the lease
  CancelGates,      \* cancel writes the gate of the batches in its transaction
  PauseGates,       \* pause does so too
  SettleWaits,      \* completion needs the fan-out to be finished ...
  SettleCounts,     \* ... and every batch to have ended
  SettleLocksFirst  \* ... and looks after it holds the campaign's row

VARIABLES
  status,    \* campaigns.status
  begun,     \* campaigns.sending_at is set
  finished,  \* fanouts.finished_at is set
  holder,    \* fanouts.leased_by: the run whose token it is; 0: nobody's
  pc,        \* fan-out -> idle, looked, reading, writing
  next,      \* fan-out -> the first person that it has not read
  seen,      \* fan-out -> the status that it saw when it looked (mutant BeginsByRow only)
  row,       \* fan-out -> person -> the notification that it wrote: none, skipped, or its batch's state
  shut,      \* rows whose batch has its gate closed
  created,   \* fanout_chunks: how many notifications the chunks say they wrote
  settling,  \* completion has looked and is about to write (mutant SettleLocksFirst only)
  asks,      \* what people have done
  crashes,   \* crashes left
  lapses,    \* lapses left
  failures,  \* failures left
  trespass   \* history: a window opened or a chunk was written after cancel or pause had answered

vars == <<status, begun, finished, holder, pc, next, seen, row, shut, created, settling, asks, crashes, lapses, failures, trespass>>

n == Cardinality(People)
Everybody == People \union {Stranger}
Slots == Fanouts \X Everybody
\* The canonical address of a person, as a run of the fan-out reads it.
Address(f, p) == IF p \in Movers THEN <<p, f>> ELSE IF p = n THEN <<n - 1, 0>> ELSE <<p, 0>>
\* A notification that has a batch, or still waits for one (nobatch).
Sent == {"ready", "leased", "ended", "cancelled", "nobatch"}
Is(s, states) == row[s[1]][s[2]] \in states
Held(a) == {s \in Slots : Is(s, Sent) /\ Address(s[1], s[2]) = a}
Has(p) == \E f \in Fanouts : row[f][p] # "none"
Live == {s \in Slots : Is(s, {"ready", "leased"})}
Number(states) == Cardinality({s \in Slots : Is(s, states)})

Init ==
  /\ status = "preparing" /\ begun = FALSE /\ finished = FALSE /\ holder = 0
  /\ pc = [f \in Fanouts |-> "idle"] /\ next = [f \in Fanouts |-> 1] /\ seen = [f \in Fanouts |-> "none"]
  /\ row = [f \in Fanouts |-> [p \in Everybody |-> "none"]] /\ shut = {}
  /\ created = 0 /\ settling = FALSE /\ asks = {} /\ crashes = Crashes /\ lapses = Lapses /\ failures = Failures /\ trespass = FALSE

-----------------------------------------------------------------------------
\* Whether the run that holds the lease goes on.
Alive == \E f \in Fanouts : holder = f /\ pc[f] # "idle"
\* Fanout takes the lease, if nobody holds it or it has run out, and looks at the
\* campaign. It will read from the first person: a run after a crash or a pause reads again.
Fanout(f) ==
  /\ pc[f] = "idle" /\ ~finished /\ status \in {"preparing", "sending", "paused"}
  /\ RunsAgain \/ next[f] = 1
  /\ ~Alive \/ lapses > 0
  /\ lapses' = IF Alive THEN lapses - 1 ELSE lapses
  /\ holder' = f /\ pc' = [pc EXCEPT ![f] = "looked"] /\ next' = [next EXCEPT ![f] = 1]
  /\ seen' = [seen EXCEPT ![f] = IF BeginsByRow THEN "none" ELSE status]
  /\ UNCHANGED <<status, begun, finished, row, shut, created, settling, asks, crashes, failures, trespass>>
\* What begin goes by: the row as it is now. The mutant goes by what the run saw,
\* and takes everything but preparing for begun.
Decides(f, states) == IF BeginsByRow \/ seen[f] = "preparing" THEN status \in states ELSE states = {"sending"}
\* Begin moves the campaign from preparing to sending, finds it sending, or gives up.
Begin(f) ==
  /\ pc[f] = "looked" /\ Decides(f, {"preparing"})
  /\ status' = "sending" /\ begun' = TRUE /\ pc' = [pc EXCEPT ![f] = "reading"] /\ seen' = [seen EXCEPT ![f] = "none"]
  /\ UNCHANGED <<finished, holder, next, row, shut, created, settling, asks, crashes, lapses, failures, trespass>>
Begun(f) ==
  /\ pc[f] = "looked" /\ Decides(f, {"sending"})
  /\ pc' = [pc EXCEPT ![f] = "reading"] /\ seen' = [seen EXCEPT ![f] = "none"]
  /\ UNCHANGED <<status, begun, finished, holder, next, row, shut, created, settling, asks, crashes, lapses, failures, trespass>>
\* Peek: a chunk that reads the status in a statement of its own (mutant ChunkLocksStatus only).
Peek(f) ==
  /\ ~ChunkLocksStatus /\ pc[f] = "reading" /\ next[f] <= n /\ status = "sending"
  /\ pc' = [pc EXCEPT ![f] = "writing"]
  /\ UNCHANGED <<status, begun, finished, holder, next, seen, row, shut, created, settling, asks, crashes, lapses, failures, trespass>>
\* In which status a chunk may be written.
Writable == IF ChunkNeedsSending THEN {"sending"} ELSE {"preparing", "sending"}
Page(f) == {p \in People : p >= next[f] /\ p < next[f] + Chunk}
\* WriteChunk: who is new gets a notification and a batch; a key that is there
\* already adds nothing; if another person holds it, this one gets a row that
\* says duplicate_address. The number goes into the second set of books.
WriteChunk(f) ==
  /\ next[f] <= n
  /\ (ChunkLocksStatus /\ pc[f] = "reading" /\ status \in Writable) \/ (~ChunkLocksStatus /\ pc[f] = "writing")
  /\ \E missing \in SUBSET Fickle :
     \E chunk \in {(Page(f) \ missing) \union (IF ReadsAudience THEN {} ELSE {Stranger})} :
     \E new \in {{p \in chunk : row[f][p] = "none" /\ (~UniqueKey \/
           (Held(Address(f, p)) = {} /\ ~\E q \in chunk : q < p /\ Address(f, q) = Address(f, p)))}} :
     \E dup \in {{p \in chunk : p \notin new /\ ~Has(p) /\ ~\E s \in Held(Address(f, p)) : s[2] = p}} :
       /\ chunk # {}
       /\ row' = [row EXCEPT ![f] = [p \in Everybody |->
            IF p \in new THEN (IF ChunkIsAtomic THEN "ready" ELSE "nobatch") ELSE IF p \in dup THEN "skipped" ELSE row[f][p]]]
       /\ created' = created + Cardinality(new)
       /\ trespass' = (trespass \/ (new # {} /\ status \notin {"preparing", "sending"}))
  /\ next' = [next EXCEPT ![f] = @ + Chunk] /\ pc' = [pc EXCEPT ![f] = "reading"]
  /\ UNCHANGED <<status, begun, finished, holder, seen, shut, settling, asks, crashes, lapses, failures>>
\* ReadNobody: there is nobody in the audience now to write a chunk of.
ReadNobody(f) ==
  /\ pc[f] = "reading" /\ next[f] <= n /\ Page(f) \subseteq Fickle
  /\ next' = [next EXCEPT ![f] = @ + Chunk]
  /\ UNCHANGED <<status, begun, finished, holder, pc, seen, row, shut, created, settling, asks, crashes, lapses, failures, trespass>>
\* MakeBatch: the second transaction of a chunk (mutant ChunkIsAtomic only).
MakeBatch(f) ==
  /\ pc[f] # "idle" /\ \E p \in Everybody : row[f][p] = "nobatch"
  /\ row' = [row EXCEPT ![f] = [p \in Everybody |-> IF row[f][p] = "nobatch" THEN "ready" ELSE row[f][p]]]
  /\ UNCHANGED <<status, begun, finished, holder, pc, next, seen, shut, created, settling, asks, crashes, lapses, failures, trespass>>
\* The lease after a run that ended: given back, if it was still its own.
Released(f) == IF holder = f THEN 0 ELSE holder
\* Stop: a fan-out that finds the campaign not being sent gives up quietly.
Stop(f) ==
  /\ (pc[f] = "reading" /\ status \notin Writable) \/ (pc[f] = "looked" /\ Decides(f, {"paused", "cancelled", "completed", "failed"}))
  /\ pc' = [pc EXCEPT ![f] = "idle"] /\ holder' = Released(f) /\ seen' = [seen EXCEPT ![f] = "none"]
  /\ UNCHANGED <<status, begun, finished, next, row, shut, created, settling, asks, crashes, lapses, failures, trespass>>
\* Finish: the whole audience was read and written. It counts while the lease is the run's own.
Finish(f) ==
  /\ pc[f] = "reading" /\ (next[f] > n \/ ~FinishesAtEnd)
  /\ finished' = (finished \/ holder = f) /\ holder' = Released(f) /\ pc' = [pc EXCEPT ![f] = "idle"]
  /\ UNCHANGED <<status, begun, next, seen, row, shut, created, settling, asks, crashes, lapses, failures, trespass>>
\* Fail closes a campaign whose source fails for good: what was not called never will be.
Fail(f) ==
  /\ pc[f] \in {"looked", "reading"} /\ failures > 0 /\ status \in {"preparing", "sending", "paused"}
  /\ holder = f \/ ~FailIsFenced
  /\ status' = "failed" /\ failures' = failures - 1 /\ pc' = [pc EXCEPT ![f] = "idle"] /\ holder' = Released(f) /\ seen' = [seen EXCEPT ![f] = "none"]
  /\ row' = [g \in Fanouts |-> [p \in Everybody |-> IF row[g][p] = "ready" THEN "cancelled" ELSE row[g][p]]] /\ shut' = shut \union Live
  /\ UNCHANGED <<begun, finished, next, created, settling, asks, crashes, lapses, trespass>>
\* Lose: a run finds that its lease has gone to another, and ends.
Lose(f) ==
  /\ pc[f] # "idle" /\ holder # f /\ pc' = [pc EXCEPT ![f] = "idle"] /\ seen' = [seen EXCEPT ![f] = "none"]
  /\ UNCHANGED <<status, begun, finished, holder, next, row, shut, created, settling, asks, crashes, lapses, failures, trespass>>
\* Crash ends a fan-out between two statements. Its lease stays until another takes it.
Crash(f) ==
  /\ pc[f] # "idle" /\ crashes > 0 /\ crashes' = crashes - 1 /\ pc' = [pc EXCEPT ![f] = "idle"] /\ seen' = [seen EXCEPT ![f] = "none"]
  /\ UNCHANGED <<status, begun, finished, holder, next, row, shut, created, settling, asks, lapses, failures, trespass>>

\* Open: a sender opens a window over a row, if its gate lets it.
Open(f, p) ==
  /\ row[f][p] = "ready" /\ <<f, p>> \notin shut
  /\ row' = [row EXCEPT ![f][p] = "leased"]
  /\ trespass' = (trespass \/ status \in {"paused", "cancelled", "failed"})
  /\ UNCHANGED <<status, begun, finished, holder, pc, next, seen, shut, created, settling, asks, crashes, lapses, failures>>
\* End: the row in the window has its end, whatever it is.
End(f, p) ==
  /\ row[f][p] = "leased" /\ row' = [row EXCEPT ![f][p] = "ended"]
  /\ UNCHANGED <<status, begun, finished, holder, pc, next, seen, shut, created, settling, asks, crashes, lapses, failures, trespass>>

\* Pause answers when no further chunk is written and no further window opens.
Pause ==
  /\ "pause" \in Asks \ asks /\ status \in {"preparing", "sending"} /\ status' = "paused" /\ asks' = asks \union {"pause"}
  /\ shut' = IF PauseGates THEN shut \union Live ELSE shut
  /\ UNCHANGED <<begun, finished, holder, pc, next, seen, row, created, settling, crashes, lapses, failures, trespass>>
\* Resume opens the gates and rings. The campaign is what it was before the pause.
Resume ==
  /\ status = "paused" /\ status' = (IF begun THEN "sending" ELSE "preparing") /\ shut' = shut \ Live
  /\ UNCHANGED <<begun, finished, holder, pc, next, seen, row, created, settling, asks, crashes, lapses, failures, trespass>>
\* Cancel ends what was not called; what stands in a window is in flight.
Cancel ==
  /\ "cancel" \in Asks \ asks /\ status \in {"preparing", "sending", "paused"} /\ status' = "cancelled" /\ asks' = asks \union {"cancel"}
  /\ row' = IF ~CancelGates THEN row ELSE [f \in Fanouts |-> [p \in Everybody |-> IF row[f][p] = "ready" THEN "cancelled" ELSE row[f][p]]]
  /\ shut' = IF CancelGates THEN shut \union Live ELSE shut
  /\ UNCHANGED <<begun, finished, holder, pc, next, seen, created, settling, crashes, lapses, failures, trespass>>

Quiet == /\ finished \/ ~SettleWaits
         /\ Live = {} \/ ~SettleCounts
\* SettleLook: the snapshot of a completion that takes its lock too late (mutant SettleLocksFirst only).
SettleLook ==
  /\ ~SettleLocksFirst /\ ~settling /\ status \in {"sending", "paused"} /\ Quiet /\ settling' = TRUE
  /\ UNCHANGED <<status, begun, finished, holder, pc, next, seen, row, shut, created, asks, crashes, lapses, failures, trespass>>
\* Settle completes a campaign of which nothing is on its way.
Settle ==
  /\ status \in {"sending", "paused"} /\ ((SettleLocksFirst /\ Quiet) \/ settling)
  /\ status' = "completed" /\ settling' = FALSE
  /\ UNCHANGED <<begun, finished, holder, pc, next, seen, row, shut, created, asks, crashes, lapses, failures, trespass>>

Next ==
  \/ \E f \in Fanouts : Fanout(f)
  \/ \E f \in Fanouts : Begin(f)
  \/ \E f \in Fanouts : Begun(f)
  \/ \E f \in Fanouts : Peek(f)
  \/ \E f \in Fanouts : WriteChunk(f)
  \/ \E f \in Fanouts : ReadNobody(f)
  \/ \E f \in Fanouts : MakeBatch(f)
  \/ \E f \in Fanouts : Stop(f)
  \/ \E f \in Fanouts : Finish(f)
  \/ \E f \in Fanouts : Fail(f)
  \/ \E f \in Fanouts : Lose(f)
  \/ \E f \in Fanouts : Crash(f)
  \/ \E f \in Fanouts : \E p \in Everybody : Open(f, p)
  \/ \E f \in Fanouts : \E p \in Everybody : End(f, p)
  \/ Pause
  \/ Resume
  \/ Cancel
  \/ SettleLook
  \/ Settle

\* Our own steps are taken, and who pauses resumes.
Fairness ==
  /\ \A f \in Fanouts : WF_vars(Fanout(f)) /\ WF_vars(Begin(f)) /\ WF_vars(Begun(f)) /\ WF_vars(Peek(f)) /\ WF_vars(WriteChunk(f))
  /\ \A f \in Fanouts : WF_vars(ReadNobody(f)) /\ WF_vars(Stop(f)) /\ WF_vars(Finish(f)) /\ WF_vars(Lose(f))
  /\ \A s \in Slots : WF_vars(Open(s[1], s[2])) /\ WF_vars(End(s[1], s[2]))
  /\ WF_vars(Resume) /\ WF_vars(SettleLook) /\ WF_vars(Settle)
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == /\ status \in {"preparing", "sending", "paused", "cancelled", "completed", "failed"} /\ holder \in Fanouts \union {0}
          /\ \A s \in Slots : Is(s, Sent \union {"none", "skipped"})
\* Nobody has two notifications, and no address has.
AtMostOneNotificationPerRecipient ==
  /\ \A p \in People : Cardinality({f \in Fanouts : row[f][p] \in Sent}) <= 1
  /\ Cardinality({s \in Slots : s[2] >= n - 1 /\ s[2] <= n /\ s[2] \notin Movers /\ Is(s, Sent)}) <= 1
\* Nobody outside the audience has one.
NobodyOutsideAudience == \A f \in Fanouts : row[f][Stranger] = "none"
\* After cancel or pause has answered, no chunk is written and no window opens.
NothingStartsAfterTheAnswer == ~trespass
\* What the chunks say they wrote is what the batches hold, in every state.
CountsBalance == created = Number({"ready", "leased", "ended", "cancelled"})
\* completed: nothing is on its way, and everybody who stood still was written down.
CompletedMeansDone == status = "completed" => (Live = {} /\ \A p \in People \ Fickle : Has(p))
\* A campaign whose audience was read to its end is not failed any more: what was written is sent.
FailedMeansUnread == status = "failed" => ~finished
\* Everybody is reached, unless the campaign is cancelled or fails.
EverybodyEventually == <>(status \in {"cancelled", "failed"} \/ \A p \in People \ Fickle : \E f \in Fanouts : row[f][p] \in {"ended", "skipped"})
\* The campaign ends.
CampaignEnds == <>(status \in {"cancelled", "completed", "failed"})

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverCancelledMidway == ~(status = "cancelled" /\ Number({"ended"}) > 0 /\ \E p \in People : ~Has(p))
NeverInFlightAfterCancel == ~(status = "cancelled" /\ Number({"leased"}) > 0)
NeverBothWrite == ~\A f \in Fanouts : \E p \in People : row[f][p] \in Sent
NeverDuplicateAddress == ~\E f \in Fanouts : row[f][n] = "skipped"
NeverPausedThenCompleted == ~(status = "completed" /\ "pause" \in asks)
NeverResumedBeforeBegin == ~(status = "preparing" /\ "pause" \in asks /\ \E f \in Fanouts : pc[f] = "looked")
NeverFailedMidway == ~(status = "failed" /\ Number({"ended"}) > 0 /\ Number({"cancelled"}) > 0)
NeverCompletedAfterCrash == ~(status = "completed" /\ crashes < Crashes)
=============================================================================
