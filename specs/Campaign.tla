------------------------------ MODULE Campaign -------------------------------
\* A campaign's fan-out, its pause, cancel and completion.
\*
\* Modelled: fan-outs that run at the same time (the lease between them only
\* saves work, so it is not modelled), each reading the audience in chunks and
\* crashing between them; people of whom the last two share an address; senders
\* reduced to "a window opens" and "it ends"; a person who pauses, resumes and
\* cancels; completion, in the two steps that a database makes of it.
\*
\* Left out, and why that is sound:
\* - What becomes of a call: Batch.tla and SendingEngine.tla. Here a window ends.
\* - Batches of several rows: here each row has a batch of its own, so that more
\*   can happen, not less.
\* - Scheduling and the draft come before the first chunk; a failing data source
\*   ends the campaign as cancel does.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Fanouts,          \* runs of the fan-out
  People,           \* 1..n, in the order in which the audience is read
  Stranger,         \* a number above n: somebody who is not in the audience
  Chunk,            \* people of a chunk
  Asks,             \* what people may do: pause, cancel
  Crashes,          \* how many crashes there are
  Fickle,           \* people who are in the audience for one run and not for another
  Movers            \* people whose address differs from run to run

CONSTANTS           \* Guards. TRUE in the design; each is FALSE in its own mutant
  UniqueKey,        \* the primary key of notifications: (campaign, channel, address)
  ReadsAudience,    \* the fan-out writes who is in the audience, and nobody else
  ChunkLocksStatus, \* WriteChunk reads the status under a share lock, in its transaction
  ChunkIsAtomic,    \* notification, batch and chunk line are one transaction
  FinishesAtEnd,    \* the fan-out is finished only when the whole audience was read
  RunsAgain,        \* a fan-out that crashed is rung for again
  CancelGates,      \* cancel writes the gate of the batches in its transaction
  PauseGates,       \* pause does so too
  SettleWaits,      \* completion needs the fan-out to be finished ...
  SettleCounts,     \* ... and every batch to have ended
  SettleLocksFirst  \* ... and looks after it holds the campaign's row

VARIABLES
  status,    \* campaigns.status
  finished,  \* fanouts.finished_at is set
  pc,        \* fan-out -> idle, reading, writing
  next,      \* fan-out -> the first person that it has not read
  seen,      \* fan-out -> the status that it saw before writing (mutant ChunkLocksStatus only)
  row,       \* fan-out -> person -> the notification that it wrote: none, skipped, or its batch's state
  shut,      \* rows whose batch has its gate closed
  created,   \* fanout_chunks: how many notifications the chunks say they wrote
  settling,  \* completion has looked and is about to write (mutant SettleLocksFirst only)
  asks,      \* what people have done
  crashes,   \* crashes left
  trespass   \* history: a window opened or a chunk was written after cancel or pause had answered

vars == <<status, finished, pc, next, seen, row, shut, created, settling, asks, crashes, trespass>>

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
  /\ status = "sending" /\ finished = FALSE
  /\ pc = [f \in Fanouts |-> "idle"] /\ next = [f \in Fanouts |-> 1] /\ seen = [f \in Fanouts |-> "none"]
  /\ row = [f \in Fanouts |-> [p \in Everybody |-> "none"]] /\ shut = {}
  /\ created = 0 /\ settling = FALSE /\ asks = {} /\ crashes = Crashes /\ trespass = FALSE

-----------------------------------------------------------------------------
\* Fanout begins to read, from the first person: a run after a crash or a pause reads again.
Fanout(f) ==
  /\ pc[f] = "idle" /\ ~finished /\ status = "sending"
  /\ RunsAgain \/ next[f] = 1
  /\ pc' = [pc EXCEPT ![f] = "reading"] /\ next' = [next EXCEPT ![f] = 1]
  /\ UNCHANGED <<status, finished, seen, row, shut, created, settling, asks, crashes, trespass>>
\* Look: a chunk that reads the status in a statement of its own (mutant ChunkLocksStatus only).
Look(f) ==
  /\ ~ChunkLocksStatus /\ pc[f] = "reading" /\ next[f] <= n /\ status = "sending"
  /\ seen' = [seen EXCEPT ![f] = status] /\ pc' = [pc EXCEPT ![f] = "writing"]
  /\ UNCHANGED <<status, finished, next, row, shut, created, settling, asks, crashes, trespass>>
\* WriteChunk: who is new gets a notification and a batch; a key that is there
\* already adds nothing; if another person holds it, this one gets a row that
\* says duplicate_address. The number goes into the second set of books.
WriteChunk(f) ==
  /\ next[f] <= n
  /\ (ChunkLocksStatus /\ pc[f] = "reading" /\ status = "sending") \/ (~ChunkLocksStatus /\ pc[f] = "writing")
  /\ \E missing \in SUBSET Fickle :
     \E chunk \in {({p \in People : p >= next[f] /\ p < next[f] + Chunk} \ missing) \union (IF ReadsAudience THEN {} ELSE {Stranger})} :
     \E new \in {{p \in chunk : row[f][p] = "none" /\ (~UniqueKey \/
           (Held(Address(f, p)) = {} /\ ~\E q \in chunk : q < p /\ Address(f, q) = Address(f, p)))}} :
     \E dup \in {{p \in chunk : p \notin new /\ ~Has(p) /\ ~\E s \in Held(Address(f, p)) : s[2] = p}} :
       /\ row' = [row EXCEPT ![f] = [p \in Everybody |->
            IF p \in new THEN (IF ChunkIsAtomic THEN "ready" ELSE "nobatch") ELSE IF p \in dup THEN "skipped" ELSE row[f][p]]]
       /\ created' = created + Cardinality(new)
       /\ trespass' = (trespass \/ (new # {} /\ status # "sending"))
  /\ next' = [next EXCEPT ![f] = @ + Chunk] /\ pc' = [pc EXCEPT ![f] = "reading"]
  /\ UNCHANGED <<status, finished, seen, shut, settling, asks, crashes>>
\* MakeBatch: the second transaction of a chunk (mutant ChunkIsAtomic only).
MakeBatch(f) ==
  /\ pc[f] # "idle" /\ \E p \in Everybody : row[f][p] = "nobatch"
  /\ row' = [row EXCEPT ![f] = [p \in Everybody |-> IF row[f][p] = "nobatch" THEN "ready" ELSE row[f][p]]]
  /\ UNCHANGED <<status, finished, pc, next, seen, shut, created, settling, asks, crashes, trespass>>
\* Stop: a fan-out that finds the campaign not being sent gives up quietly.
Stop(f) ==
  /\ pc[f] = "reading" /\ status # "sending" /\ pc' = [pc EXCEPT ![f] = "idle"]
  /\ UNCHANGED <<status, finished, next, seen, row, shut, created, settling, asks, crashes, trespass>>
\* Finish: the whole audience was read and written.
Finish(f) ==
  /\ pc[f] = "reading" /\ (next[f] > n \/ ~FinishesAtEnd) /\ finished' = TRUE /\ pc' = [pc EXCEPT ![f] = "idle"]
  /\ UNCHANGED <<status, next, seen, row, shut, created, settling, asks, crashes, trespass>>
\* Crash ends a fan-out between chunks.
Crash(f) ==
  /\ pc[f] # "idle" /\ crashes > 0 /\ crashes' = crashes - 1 /\ pc' = [pc EXCEPT ![f] = "idle"]
  /\ UNCHANGED <<status, finished, next, seen, row, shut, created, settling, asks, trespass>>

\* Open: a sender opens a window over a row, if its gate lets it.
Open(f, p) ==
  /\ row[f][p] = "ready" /\ <<f, p>> \notin shut
  /\ row' = [row EXCEPT ![f][p] = "leased"]
  /\ trespass' = (trespass \/ status \in {"paused", "cancelled"})
  /\ UNCHANGED <<status, finished, pc, next, seen, shut, created, settling, asks, crashes>>
\* End: the row in the window has its end, whatever it is.
End(f, p) ==
  /\ row[f][p] = "leased" /\ row' = [row EXCEPT ![f][p] = "ended"]
  /\ UNCHANGED <<status, finished, pc, next, seen, shut, created, settling, asks, crashes, trespass>>

\* Pause answers when no further chunk is written and no further window opens.
Pause ==
  /\ "pause" \in Asks \ asks /\ status = "sending" /\ status' = "paused" /\ asks' = asks \union {"pause"}
  /\ shut' = IF PauseGates THEN shut \union Live ELSE shut
  /\ UNCHANGED <<finished, pc, next, seen, row, created, settling, crashes, trespass>>
\* Resume opens the gates and rings.
Resume ==
  /\ status = "paused" /\ status' = "sending" /\ shut' = shut \ Live
  /\ UNCHANGED <<finished, pc, next, seen, row, created, settling, asks, crashes, trespass>>
\* Cancel ends what was not called; what stands in a window is in flight.
Cancel ==
  /\ "cancel" \in Asks \ asks /\ status \in {"sending", "paused"} /\ status' = "cancelled" /\ asks' = asks \union {"cancel"}
  /\ row' = IF ~CancelGates THEN row ELSE [f \in Fanouts |-> [p \in Everybody |-> IF row[f][p] = "ready" THEN "cancelled" ELSE row[f][p]]]
  /\ shut' = IF CancelGates THEN shut \union Live ELSE shut
  /\ UNCHANGED <<finished, pc, next, seen, created, settling, crashes, trespass>>

Quiet == /\ finished \/ ~SettleWaits
         /\ Live = {} \/ ~SettleCounts
\* SettleLook: the snapshot of a completion that takes its lock too late (mutant SettleLocksFirst only).
SettleLook ==
  /\ ~SettleLocksFirst /\ ~settling /\ status \in {"sending", "paused"} /\ Quiet /\ settling' = TRUE
  /\ UNCHANGED <<status, finished, pc, next, seen, row, shut, created, asks, crashes, trespass>>
\* Settle completes a campaign of which nothing is on its way.
Settle ==
  /\ status \in {"sending", "paused"} /\ ((SettleLocksFirst /\ Quiet) \/ settling)
  /\ status' = "completed" /\ settling' = FALSE
  /\ UNCHANGED <<finished, pc, next, seen, row, shut, created, asks, crashes, trespass>>

Next ==
  \/ \E f \in Fanouts : Fanout(f)
  \/ \E f \in Fanouts : Look(f)
  \/ \E f \in Fanouts : WriteChunk(f)
  \/ \E f \in Fanouts : MakeBatch(f)
  \/ \E f \in Fanouts : Stop(f)
  \/ \E f \in Fanouts : Finish(f)
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
  /\ \A f \in Fanouts : WF_vars(Fanout(f)) /\ WF_vars(Look(f)) /\ WF_vars(WriteChunk(f)) /\ WF_vars(Stop(f)) /\ WF_vars(Finish(f))
  /\ \A s \in Slots : WF_vars(Open(s[1], s[2])) /\ WF_vars(End(s[1], s[2]))
  /\ WF_vars(Resume) /\ WF_vars(SettleLook) /\ WF_vars(Settle)
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == /\ status \in {"sending", "paused", "cancelled", "completed"}
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
BooksBalance == created = Number({"ready", "leased", "ended", "cancelled"})
\* completed: nothing is on its way, and everybody who stood still was written down.
CompletedMeansDone == status = "completed" => (Live = {} /\ \A p \in People \ Fickle : Has(p))
\* Everybody is reached, unless the campaign is cancelled.
EverybodyEventually == <>(status = "cancelled" \/ \A p \in People \ Fickle : \E f \in Fanouts : row[f][p] \in {"ended", "skipped"})
\* The campaign ends.
CampaignEnds == <>(status \in {"cancelled", "completed"})

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverCancelledMidway == ~(status = "cancelled" /\ Number({"ended"}) > 0 /\ \E p \in People : ~Has(p))
NeverInFlightAfterCancel == ~(status = "cancelled" /\ Number({"leased"}) > 0)
NeverBothWrite == ~\A f \in Fanouts : \E p \in People : row[f][p] \in Sent
NeverDuplicateAddress == ~\E f \in Fanouts : row[f][n] = "skipped"
NeverPausedThenCompleted == ~(status = "completed" /\ "pause" \in asks)
NeverCompletedAfterCrash == ~(status = "completed" /\ crashes < Crashes)
=============================================================================
