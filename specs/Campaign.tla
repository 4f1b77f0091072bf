------------------------------ MODULE Campaign -------------------------------
\* A campaign from preparing to its end: fan-out, pause, cancel, failure,
\* completion.
\*
\* Modelled: runs of the fan-out, each with its own lease (which may expire
\* while the run continues, so that two run at the same time), that read the
\* campaign, begin to send, read the audience in chunks, crash, and find that
\* the data source fails; profiles, of which the last two share an address;
\* senders reduced to "a window opens" and "the row ends"; a user that pauses,
\* resumes and cancels; completion, in the two steps in which a database
\* executes it.
\*
\* Left out, and why that is sound:
\* - The outcome of a call: Batch.tla and SendingEngine.tla. Here a window
\*   ends.
\* - Batches of several rows: here each row has its own batch, so that more can
\*   happen, not less.
\* - Scheduling and the draft come before the first run.
\* - The clock: an expired lease is one that another run may take. A run that
\*   finds another token in the row stops (LoseLease), at any time.
\* - The claim and the read that follows it are one step, whatever the
\*   campaign's status: the real claim admits fewer runs.
\* - Opt-outs, and reading an audience again for notifications that have waited
\*   long: Consent.tla, Recheck.tla. They end rows as sending does.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Fanouts,       \* runs of the fan-out: numbers from 1
  Profiles,      \* 1..n, in the order in which the audience is read
  Outsider,      \* a number above n: a profile that is not in the audience
  Chunk,         \* profiles of a chunk
  Requests,      \* what users may request: pause, cancel
  Crashes,       \* how many crashes there are
  Expiries,      \* how often the lease of a live run expires
  Failures,      \* how often a run finds that the data source fails permanently
  Changing,      \* profiles that are in the audience of one run and not of another
  AddressChanges \* profiles whose address differs from run to run

CONSTANTS            \* Guards. TRUE in the design; each is FALSE in its own mutant
  UniqueKey,         \* the primary key of notifications: (campaign, channel, address)
  ReadsAudience,     \* the fan-out writes only profiles of the audience
  BeginsByRow,       \* begin depends on the campaign's row in its own statement, not on what the run read before
  ChunkLocksStatus,  \* WriteChunk reads the status under a share lock, in its transaction
  ChunkNeedsSending, \* ... and writes only while the campaign is sending, not before it has begun
  ChunkIsAtomic,     \* notification, batch and fanout_chunks row are one transaction
  FinishesAtEnd,     \* the fan-out is finished only when the whole audience was read
  RunsAgain,         \* a fan-out that crashed is enqueued again
  FailIsFenced,      \* a run fails the campaign only while it holds the lease
  CancelClosesGates, \* cancel closes the gates of the batches in its transaction
  PauseClosesGates,  \* ... and so does pause
  SettleWaits,       \* completion needs the fan-out to be finished ...
  SettleCounts,      \* ... and every batch to have ended
  SettleLocksFirst   \* ... and reads both after it has locked the campaign's row

VARIABLES
  status,          \* campaigns.status
  begun,           \* campaigns.sending_at is set
  finished,        \* fanouts.finished_at is set
  holder,          \* fanouts.leased_by: the run that holds the token; 0: none
  pc,              \* fan-out -> idle, claimed, reading, writing
  next,            \* fan-out -> the first profile that it has not read
  seenStatus,      \* fan-out -> the status that it has read (mutant BeginsByRow only)
  row,             \* fan-out -> profile -> the notification that it wrote: none, skipped, or its batch's status
  closed,          \* rows whose batch has a closed gate
  created,         \* fanout_chunks: the number of notifications that the chunks count
  settling,        \* completion has read and is about to write (mutant SettleLocksFirst only)
  requested,       \* what users have requested
  crashes,         \* crashes left
  expiries,        \* expiries left
  failures,        \* failures left
  startedAfterStop \* history: a window opened or a chunk was written after cancel or pause had answered

vars == <<status, begun, finished, holder, pc, next, seenStatus, row, closed, created, settling, requested, crashes, expiries, failures,
          startedAfterStop>>

n == Cardinality(Profiles)
AllProfiles == Profiles \union {Outsider}
Slots == Fanouts \X AllProfiles
\* The canonical address of a profile, as a run of the fan-out reads it.
Address(f, p) == IF p \in AddressChanges THEN <<p, f>> ELSE IF p = n THEN <<n - 1, 0>> ELSE <<p, 0>>
\* A notification that has a batch, or still waits for one (no_batch).
Intended == {"ready", "leased", "ended", "cancelled", "no_batch"}
Is(s, states) == row[s[1]][s[2]] \in states
Holders(a) == {s \in Slots : Is(s, Intended) /\ Address(s[1], s[2]) = a}
Has(p) == \E f \in Fanouts : row[f][p] # "none"
Live == {s \in Slots : Is(s, {"ready", "leased"})}
Number(states) == Cardinality({s \in Slots : Is(s, states)})

Init ==
  /\ status = "preparing" /\ begun = FALSE /\ finished = FALSE /\ holder = 0
  /\ pc = [f \in Fanouts |-> "idle"] /\ next = [f \in Fanouts |-> 1] /\ seenStatus = [f \in Fanouts |-> "none"]
  /\ row = [f \in Fanouts |-> [p \in AllProfiles |-> "none"]] /\ closed = {}
  /\ created = 0 /\ settling = FALSE /\ requested = {} /\ crashes = Crashes /\ expiries = Expiries /\ failures = Failures
  /\ startedAfterStop = FALSE

-----------------------------------------------------------------------------
\* Whether the run that holds the lease continues.
HolderRuns == \E f \in Fanouts : holder = f /\ pc[f] # "idle"
\* Fanout takes the lease, if it has no holder or has expired, and reads the
\* campaign. It reads from the first profile: a run after a crash or a pause
\* reads the audience again.
Fanout(f) ==
  /\ pc[f] = "idle" /\ ~finished /\ status \in {"preparing", "sending", "paused"}
  /\ RunsAgain \/ next[f] = 1
  /\ ~HolderRuns \/ expiries > 0
  /\ expiries' = IF HolderRuns THEN expiries - 1 ELSE expiries
  /\ holder' = f /\ pc' = [pc EXCEPT ![f] = "claimed"] /\ next' = [next EXCEPT ![f] = 1]
  /\ seenStatus' = [seenStatus EXCEPT ![f] = IF BeginsByRow THEN "none" ELSE status]
  /\ UNCHANGED <<status, begun, finished, row, closed, created, settling, requested, crashes, failures, startedAfterStop>>
\* The status that begin depends on: that of the row now. The mutant uses the
\* status that the run has read, and takes all but preparing as begun.
StatusIs(f, states) == IF BeginsByRow \/ seenStatus[f] = "preparing" THEN status \in states ELSE states = {"sending"}
\* Begin moves the campaign from preparing to sending, finds it sending, or
\* stops.
Begin(f) ==
  /\ pc[f] = "claimed" /\ StatusIs(f, {"preparing"})
  /\ status' = "sending" /\ begun' = TRUE /\ pc' = [pc EXCEPT ![f] = "reading"] /\ seenStatus' = [seenStatus EXCEPT ![f] = "none"]
  /\ UNCHANGED <<finished, holder, next, row, closed, created, settling, requested, crashes, expiries, failures, startedAfterStop>>
Begun(f) ==
  /\ pc[f] = "claimed" /\ StatusIs(f, {"sending"})
  /\ pc' = [pc EXCEPT ![f] = "reading"] /\ seenStatus' = [seenStatus EXCEPT ![f] = "none"]
  /\ UNCHANGED <<status, begun, finished, holder, next, row, closed, created, settling, requested, crashes, expiries, failures,
                 startedAfterStop>>
\* ReadStatus: a chunk that reads the status in a statement of its own (mutant
\* ChunkLocksStatus only).
ReadStatus(f) ==
  /\ ~ChunkLocksStatus /\ pc[f] = "reading" /\ next[f] <= n /\ status = "sending"
  /\ pc' = [pc EXCEPT ![f] = "writing"]
  /\ UNCHANGED <<status, begun, finished, holder, next, seenStatus, row, closed, created, settling, requested, crashes, expiries,
                 failures, startedAfterStop>>
\* The statuses in which a chunk may be written.
Writable == IF ChunkNeedsSending THEN {"sending"} ELSE {"preparing", "sending"}
ChunkOf(f) == {p \in Profiles : p >= next[f] /\ p < next[f] + Chunk}
\* WriteChunk: a new recipient gets a notification and a batch. A key that
\* exists already adds nothing; if another profile has it, this one gets a row
\* with duplicate_address. The number goes into fanout_chunks.
WriteChunk(f) ==
  /\ next[f] <= n
  /\ (ChunkLocksStatus /\ pc[f] = "reading" /\ status \in Writable) \/ (~ChunkLocksStatus /\ pc[f] = "writing")
  /\ \E missing \in SUBSET Changing :
     \E chunk \in {(ChunkOf(f) \ missing) \union (IF ReadsAudience THEN {} ELSE {Outsider})} :
     \E new \in {{p \in chunk : row[f][p] = "none" /\ (~UniqueKey \/
           (Holders(Address(f, p)) = {} /\ ~\E q \in chunk : q < p /\ Address(f, q) = Address(f, p)))}} :
     \E dup \in {{p \in chunk : p \notin new /\ ~Has(p) /\ ~\E s \in Holders(Address(f, p)) : s[2] = p}} :
       /\ chunk # {}
       /\ row' = [row EXCEPT ![f] = [p \in AllProfiles |->
            IF p \in new THEN (IF ChunkIsAtomic THEN "ready" ELSE "no_batch") ELSE IF p \in dup THEN "skipped" ELSE row[f][p]]]
       /\ created' = created + Cardinality(new)
       /\ startedAfterStop' = (startedAfterStop \/ (new # {} /\ status \notin {"preparing", "sending"}))
  /\ next' = [next EXCEPT ![f] = @ + Chunk] /\ pc' = [pc EXCEPT ![f] = "reading"]
  /\ UNCHANGED <<status, begun, finished, holder, seenStatus, closed, settling, requested, crashes, expiries, failures>>
\* ReadEmptyChunk: the audience has no profile of this chunk now.
ReadEmptyChunk(f) ==
  /\ pc[f] = "reading" /\ next[f] <= n /\ ChunkOf(f) \subseteq Changing
  /\ next' = [next EXCEPT ![f] = @ + Chunk]
  /\ UNCHANGED <<status, begun, finished, holder, pc, seenStatus, row, closed, created, settling, requested, crashes, expiries,
                 failures, startedAfterStop>>
\* MakeBatch: the second transaction of a chunk (mutant ChunkIsAtomic only).
MakeBatch(f) ==
  /\ pc[f] # "idle" /\ \E p \in AllProfiles : row[f][p] = "no_batch"
  /\ row' = [row EXCEPT ![f] = [p \in AllProfiles |-> IF row[f][p] = "no_batch" THEN "ready" ELSE row[f][p]]]
  /\ UNCHANGED <<status, begun, finished, holder, pc, next, seenStatus, closed, created, settling, requested, crashes, expiries,
                 failures, startedAfterStop>>
\* The lease after a run that ended: released, if it was still the run's own.
Released(f) == IF holder = f THEN 0 ELSE holder
\* Stop: a fan-out that finds the campaign in another status ends without
\* effect.
Stop(f) ==
  /\ (pc[f] = "reading" /\ status \notin Writable) \/ (pc[f] = "claimed" /\ StatusIs(f, {"paused", "cancelled", "completed", "failed"}))
  /\ pc' = [pc EXCEPT ![f] = "idle"] /\ holder' = Released(f) /\ seenStatus' = [seenStatus EXCEPT ![f] = "none"]
  /\ UNCHANGED <<status, begun, finished, next, row, closed, created, settling, requested, crashes, expiries, failures, startedAfterStop>>
\* Finish: the whole audience was read and written. It counts while the run
\* holds the lease.
Finish(f) ==
  /\ pc[f] = "reading" /\ (next[f] > n \/ ~FinishesAtEnd)
  /\ finished' = (finished \/ holder = f) /\ holder' = Released(f) /\ pc' = [pc EXCEPT ![f] = "idle"]
  /\ UNCHANGED <<status, begun, next, seenStatus, row, closed, created, settling, requested, crashes, expiries, failures, startedAfterStop>>
\* Fail ends a campaign whose data source fails permanently: rows that were not
\* called never will be.
Fail(f) ==
  /\ pc[f] \in {"claimed", "reading"} /\ failures > 0 /\ status \in {"preparing", "sending", "paused"}
  /\ holder = f \/ ~FailIsFenced
  /\ status' = "failed" /\ failures' = failures - 1 /\ pc' = [pc EXCEPT ![f] = "idle"] /\ holder' = Released(f)
  /\ seenStatus' = [seenStatus EXCEPT ![f] = "none"]
  /\ row' = [g \in Fanouts |-> [p \in AllProfiles |-> IF row[g][p] = "ready" THEN "cancelled" ELSE row[g][p]]]
  /\ closed' = closed \union Live
  /\ UNCHANGED <<begun, finished, next, created, settling, requested, crashes, expiries, startedAfterStop>>
\* LoseLease: a run finds that another has its lease, and ends.
LoseLease(f) ==
  /\ pc[f] # "idle" /\ holder # f /\ pc' = [pc EXCEPT ![f] = "idle"] /\ seenStatus' = [seenStatus EXCEPT ![f] = "none"]
  /\ UNCHANGED <<status, begun, finished, holder, next, row, closed, created, settling, requested, crashes, expiries, failures,
                 startedAfterStop>>
\* Crash ends a fan-out between two statements. Its lease stays until another
\* run takes it.
Crash(f) ==
  /\ pc[f] # "idle" /\ crashes > 0 /\ crashes' = crashes - 1 /\ pc' = [pc EXCEPT ![f] = "idle"]
  /\ seenStatus' = [seenStatus EXCEPT ![f] = "none"]
  /\ UNCHANGED <<status, begun, finished, holder, next, row, closed, created, settling, requested, expiries, failures, startedAfterStop>>

\* Open: a sender opens a window with a row, if its gate is open.
Open(f, p) ==
  /\ row[f][p] = "ready" /\ <<f, p>> \notin closed
  /\ row' = [row EXCEPT ![f][p] = "leased"]
  /\ startedAfterStop' = (startedAfterStop \/ status \in {"paused", "cancelled", "failed"})
  /\ UNCHANGED <<status, begun, finished, holder, pc, next, seenStatus, closed, created, settling, requested, crashes, expiries, failures>>
\* End: the row in the window ends, with any outcome.
End(f, p) ==
  /\ row[f][p] = "leased" /\ row' = [row EXCEPT ![f][p] = "ended"]
  /\ UNCHANGED <<status, begun, finished, holder, pc, next, seenStatus, closed, created, settling, requested, crashes, expiries,
                 failures, startedAfterStop>>

\* Pause answers when no further chunk is written and no further window opens.
Pause ==
  /\ "pause" \in Requests \ requested /\ status \in {"preparing", "sending"} /\ status' = "paused"
  /\ requested' = requested \union {"pause"}
  /\ closed' = IF PauseClosesGates THEN closed \union Live ELSE closed
  /\ UNCHANGED <<begun, finished, holder, pc, next, seenStatus, row, created, settling, crashes, expiries, failures, startedAfterStop>>
\* Resume opens the gates and enqueues the jobs. The campaign gets the status
\* from before the pause.
Resume ==
  /\ status = "paused" /\ status' = (IF begun THEN "sending" ELSE "preparing") /\ closed' = closed \ Live
  /\ UNCHANGED <<begun, finished, holder, pc, next, seenStatus, row, created, settling, requested, crashes, expiries, failures,
                 startedAfterStop>>
\* Cancel ends rows that were not called; a row in a window is in flight.
Cancel ==
  /\ "cancel" \in Requests \ requested /\ status \in {"preparing", "sending", "paused"} /\ status' = "cancelled"
  /\ requested' = requested \union {"cancel"}
  /\ row' = IF ~CancelClosesGates THEN row
            ELSE [f \in Fanouts |-> [p \in AllProfiles |-> IF row[f][p] = "ready" THEN "cancelled" ELSE row[f][p]]]
  /\ closed' = IF CancelClosesGates THEN closed \union Live ELSE closed
  /\ UNCHANGED <<begun, finished, holder, pc, next, seenStatus, created, settling, crashes, expiries, failures, startedAfterStop>>

NothingLeft ==
  /\ finished \/ ~SettleWaits
  /\ Live = {} \/ ~SettleCounts
\* SettleSnapshot: the snapshot of a completion that takes its lock too late
\* (mutant SettleLocksFirst only).
SettleSnapshot ==
  /\ ~SettleLocksFirst /\ ~settling /\ status \in {"sending", "paused"} /\ NothingLeft /\ settling' = TRUE
  /\ UNCHANGED <<status, begun, finished, holder, pc, next, seenStatus, row, closed, created, requested, crashes, expiries, failures,
                 startedAfterStop>>
\* Settle completes a campaign with a finished fan-out and no live batch.
Settle ==
  /\ status \in {"sending", "paused"} /\ ((SettleLocksFirst /\ NothingLeft) \/ settling)
  /\ status' = "completed" /\ settling' = FALSE
  /\ UNCHANGED <<begun, finished, holder, pc, next, seenStatus, row, closed, created, requested, crashes, expiries, failures,
                 startedAfterStop>>

Next ==
  \/ \E f \in Fanouts : Fanout(f)
  \/ \E f \in Fanouts : Begin(f)
  \/ \E f \in Fanouts : Begun(f)
  \/ \E f \in Fanouts : ReadStatus(f)
  \/ \E f \in Fanouts : WriteChunk(f)
  \/ \E f \in Fanouts : ReadEmptyChunk(f)
  \/ \E f \in Fanouts : MakeBatch(f)
  \/ \E f \in Fanouts : Stop(f)
  \/ \E f \in Fanouts : Finish(f)
  \/ \E f \in Fanouts : Fail(f)
  \/ \E f \in Fanouts : LoseLease(f)
  \/ \E f \in Fanouts : Crash(f)
  \/ \E f \in Fanouts : \E p \in AllProfiles : Open(f, p)
  \/ \E f \in Fanouts : \E p \in AllProfiles : End(f, p)
  \/ Pause
  \/ Resume
  \/ Cancel
  \/ SettleSnapshot
  \/ Settle

\* Lemma's own steps are taken, and a pause is followed by a resume.
Fairness ==
  /\ \A f \in Fanouts : WF_vars(Fanout(f)) /\ WF_vars(Begin(f)) /\ WF_vars(Begun(f)) /\ WF_vars(ReadStatus(f)) /\ WF_vars(WriteChunk(f))
  /\ \A f \in Fanouts : WF_vars(ReadEmptyChunk(f)) /\ WF_vars(Stop(f)) /\ WF_vars(Finish(f)) /\ WF_vars(LoseLease(f))
  /\ \A s \in Slots : WF_vars(Open(s[1], s[2])) /\ WF_vars(End(s[1], s[2]))
  /\ WF_vars(Resume) /\ WF_vars(SettleSnapshot) /\ WF_vars(Settle)
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == /\ status \in {"preparing", "sending", "paused", "cancelled", "completed", "failed"} /\ holder \in Fanouts \union {0}
          /\ \A s \in Slots : Is(s, Intended \union {"none", "skipped"})
\* A profile has at most one notification, and so has an address.
AtMostOneNotificationPerRecipient ==
  /\ \A p \in Profiles : Cardinality({f \in Fanouts : row[f][p] \in Intended}) <= 1
  /\ Cardinality({s \in Slots : s[2] >= n - 1 /\ s[2] <= n /\ s[2] \notin AddressChanges /\ Is(s, Intended)}) <= 1
\* A profile outside the audience has none.
NoRecipientOutsideAudience == \A f \in Fanouts : row[f][Outsider] = "none"
\* After cancel or pause has answered, no chunk is written and no window opens.
NothingStartsAfterStop == ~startedAfterStop
\* The chunks count what the batches contain, in every state.
CountsBalance == created = Number({"ready", "leased", "ended", "cancelled"})
\* completed: no batch is live, and every profile that stayed in the audience
\* has a row.
CompletedMeansDone == status = "completed" => (Live = {} /\ \A p \in Profiles \ Changing : Has(p))
\* A campaign whose audience was read to its end does not fail: its
\* notifications are sent.
FailedMeansUnread == status = "failed" => ~finished
\* Every recipient is reached, unless the campaign is cancelled or fails.
EveryRecipientReached == <>(status \in {"cancelled", "failed"} \/
  \A p \in Profiles \ Changing : \E f \in Fanouts : row[f][p] \in {"ended", "skipped"})
\* The campaign ends.
CampaignEnds == <>(status \in {"cancelled", "completed", "failed"})

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverCancelledMidway == ~(status = "cancelled" /\ Number({"ended"}) > 0 /\ \E p \in Profiles : ~Has(p))
NeverInFlightAfterCancel == ~(status = "cancelled" /\ Number({"leased"}) > 0)
NeverBothWrite == ~\A f \in Fanouts : \E p \in Profiles : row[f][p] \in Intended
NeverDuplicateAddress == ~\E f \in Fanouts : row[f][n] = "skipped"
NeverPausedThenCompleted == ~(status = "completed" /\ "pause" \in requested)
NeverResumedBeforeBegin == ~(status = "preparing" /\ "pause" \in requested /\ \E f \in Fanouts : pc[f] = "claimed")
NeverFailedMidway == ~(status = "failed" /\ Number({"ended"}) > 0 /\ Number({"cancelled"}) > 0)
NeverCompletedAfterCrash == ~(status = "completed" /\ crashes < Crashes)
=============================================================================
