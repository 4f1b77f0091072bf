------------------------------- MODULE Consent -------------------------------
\* Opt-outs of a campaign that is paused and resumed.
\*
\* Modelled: an audience of three rows, of which two are of one profile and two
\* have one address; rows that opt out at any time; runs of the fan-out, each of
\* which reads the audience once and writes what it has read, one row in a
\* transaction; a run that continues after it has lost its lease; a pause, which
\* ends a run; the marks of intents that were written before their opt-out; a
\* sender that claims an intent, reads its mark, reads the audience again if the
\* intent has waited for the bound, and calls. Time is one step: the bound passes.
\*
\* Left out, and why that is sound:
\* - A profile that opts in again: a mark stays, and nothing more is called.
\* - Rows of one chunk together: one row in a transaction allows more to happen
\*   in between.
\* - Outages of the data source, second attempts, the memory of a process:
\*   Recheck.tla. Ends of the campaign, and that every row ends: Campaign.tla.
\* - The duration of a claim: as in Recheck.tla. What is committed during a claim
\*   counts for the next one.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Rows,    \* rows of the audience: {1, 2} or {1, 2, 3}
  Runs,    \* runs of the fan-out, in their order: numbers from 1
  OptOuts, \* how many rows opt out
  Pauses   \* how often a user pauses the campaign

CONSTANTS             \* Guards. TRUE in the design; each is FALSE in its own mutant
  ReadsFromStart,     \* a run after a pause reads the whole audience again, and does not continue where the last one ended
  OptOutsFirst,       \* a run writes rows that are opted out before all others
  OptOutHoldsAddress, \* a row that is opted out holds its address, so that no other profile is written to there
  SkipsWholeProfile,  \* an opt-out in one row is one of the profile
  MarksProfiles,      \* a profile that opts out and has no unsubscribed row is marked
  MarksIntents,       \* an intent that was written before its opt-out is marked
  ClaimReadsMarks,    \* a claim skips marked rows
  ChunkNeedsLease,    \* a run that has lost its lease writes nothing
  ReadsOldAgain,      \* the sender reads the audience again for a row that has waited for the bound
  WaitsFromReading    \* the wait of a row begins when its run has read it, not when it is written

VARIABLES
  optedOut,       \* rows of the audience that are opted out now
  status,         \* campaigns.status: sending, paused
  pauses,         \* pauses left
  holder,         \* fanouts.leased_by: the run that holds the token; 0: none
  finished,       \* fanouts.finished_at is set
  pc,             \* run -> waiting, reading, ended
  seen,           \* run -> the rows that it has read as opted out
  todo,           \* run -> rows that it has not written
  seenOld,        \* run -> it has read them longer than the bound ago
  key,            \* address -> the row that holds its key in notifications; 0: none
  intent,         \* row -> its intent: none, ready, called, skipped
  unsubscribed,   \* profiles that have a row with the reason unsubscribed
  markedKeys,     \* opt_outs: addresses
  markedProfiles, \* opt_outs: profiles
  old,            \* intents that have waited for the bound
  outBefore,      \* history: run -> rows that were opted out before it began
  outRead,        \* history: rows that were opted out before a run began that has read the audience to its end
  outLong,        \* history: rows that have been opted out for the bound
  calledRead,     \* history: an intent was claimed and called although outRead excludes it
  wroteExcluded,  \* history: a run has written an intent that an opt-out that it has read excludes
  calledLong      \* history: a row was called although its profile has been opted out for the bound

vars == <<optedOut, status, pauses, holder, finished, pc, seen, todo, seenOld, key, intent, unsubscribed, markedKeys, markedProfiles, old,
          outBefore, outRead, outLong, calledRead, wroteExcluded, calledLong>>

\* Rows 1 and 2 are of one profile, rows 2 and 3 have one address.
Profile(r) == IF r = 3 THEN 2 ELSE 1
Address(r) == IF r = 1 THEN 1 ELSE 2
\* A row is excluded by an opt-out of its profile or its address.
Excluded(r, outs) == \E o \in outs : Profile(o) = Profile(r) \/ Address(o) = Address(r)

Init ==
  /\ optedOut = {} /\ status = "sending" /\ pauses = Pauses /\ holder = 0 /\ finished = FALSE
  /\ pc = [f \in Runs |-> "waiting"] /\ seen = [f \in Runs |-> {}] /\ todo = [f \in Runs |-> Rows] /\ seenOld = [f \in Runs |-> FALSE]
  /\ key = [a \in {1, 2} |-> 0] /\ intent = [r \in Rows |-> "none"] /\ unsubscribed = {} /\ markedKeys = {} /\ markedProfiles = {}
  /\ old = {} /\ outBefore = [f \in Runs |-> {}] /\ outRead = {} /\ outLong = {} /\ calledRead = FALSE
  /\ wroteExcluded = FALSE /\ calledLong = FALSE

-----------------------------------------------------------------------------
\* OptOut: the customer's database has a row as opted out from now on.
OptOut(r) ==
  /\ r \notin optedOut /\ Cardinality(optedOut) < OptOuts /\ optedOut' = optedOut \union {r}
  /\ UNCHANGED <<status, pauses, holder, finished, pc, seen, todo, seenOld, key, intent, unsubscribed, markedKeys, markedProfiles, old,
                 outBefore, outRead, outLong, calledRead, wroteExcluded, calledLong>>
\* BoundPasses: the bound passes.
BoundPasses ==
  /\ old' = {r \in Rows : intent[r] = "ready"} /\ outLong' = optedOut
  /\ seenOld' = [f \in Runs |-> pc[f] = "reading"]
  /\ UNCHANGED <<optedOut, status, pauses, holder, finished, pc, seen, todo, key, intent, unsubscribed, markedKeys, markedProfiles,
                 outBefore, outRead, calledRead, wroteExcluded, calledLong>>

\* Pause and Resume. While the campaign is paused, no chunk is written and no
\* batch is claimed.
Pause ==
  /\ status = "sending" /\ pauses > 0 /\ pauses' = pauses - 1 /\ status' = "paused"
  /\ UNCHANGED <<optedOut, holder, finished, pc, seen, todo, seenOld, key, intent, unsubscribed, markedKeys, markedProfiles, old,
                 outBefore, outRead, outLong, calledRead, wroteExcluded, calledLong>>
Resume ==
  /\ status = "paused" /\ status' = "sending"
  /\ UNCHANGED <<optedOut, pauses, holder, finished, pc, seen, todo, seenOld, key, intent, unsubscribed, markedKeys, markedProfiles, old,
                 outBefore, outRead, outLong, calledRead, wroteExcluded, calledLong>>

\* Fanout: a run takes the lease, which is free or has expired, and reads the
\* audience, all of it in one snapshot.
Left(f) == IF ReadsFromStart \/ f = 1 THEN Rows ELSE todo[f - 1]
Fanout(f) ==
  /\ pc[f] = "waiting" /\ status = "sending" /\ ~finished /\ (\A g \in Runs : g >= f \/ pc[g] # "waiting")
  /\ holder' = f /\ pc' = [pc EXCEPT ![f] = "reading"] /\ seen' = [seen EXCEPT ![f] = optedOut \cap Left(f)]
  /\ todo' = [todo EXCEPT ![f] = Left(f)] /\ outBefore' = [outBefore EXCEPT ![f] = optedOut]
  /\ UNCHANGED <<optedOut, status, pauses, finished, seenOld, key, intent, unsubscribed, markedKeys, markedProfiles, old, outRead, outLong,
                 calledRead, wroteExcluded, calledLong>>
\* The end of a run. What it has read is gone.
Forget(f) ==
  /\ pc' = [pc EXCEPT ![f] = "ended"] /\ holder' = (IF holder = f THEN 0 ELSE holder)
  /\ seen' = [seen EXCEPT ![f] = {}] /\ seenOld' = [seenOld EXCEPT ![f] = FALSE] /\ outBefore' = [outBefore EXCEPT ![f] = {}]
  /\ todo' = [todo EXCEPT ![f] = IF ReadsFromStart THEN {} ELSE @]
\* Stop: a run finds the campaign paused or its lease lost, or crashes.
Stop(f) ==
  /\ pc[f] = "reading" /\ Forget(f)
  /\ UNCHANGED <<optedOut, status, pauses, finished, key, intent, unsubscribed, markedKeys, markedProfiles, old, outRead, outLong,
                 calledRead, wroteExcluded, calledLong>>
\* The rows that a run may write next: those that are opted out come first.
NextRows(f) == IF OptOutsFirst /\ todo[f] \cap seen[f] # {} THEN todo[f] \cap seen[f] ELSE todo[f]
MayWrite(f) == pc[f] = "reading" /\ status = "sending" /\ (holder = f \/ ~ChunkNeedsLease)
\* A first run marks nothing, since it writes opt-outs first.
Marks(f) == MarksIntents /\ f > 1
\* A profile that the run finds opted out and that has no unsubscribed row.
NewProfileMark(f, p, unsub) == IF MarksProfiles /\ f > 1 /\ p \notin unsub THEN {p} ELSE {}
\* WriteOptOut: a row that is opted out. If no row holds its address, it does. If
\* an intent does, the intent is marked.
WriteOptOut(f, r) ==
  /\ MayWrite(f) /\ r \in NextRows(f) /\ r \in seen[f]
  /\ \E a \in {Address(r)} : \E h \in {key[Address(r)]} :
     \E free \in {key[Address(r)] = 0} :
     \E own \in {key[Address(r)] # 0 /\ Profile(key[Address(r)]) = Profile(r)} :
     \E unsub \in {unsubscribed \union (IF key[Address(r)] # 0 /\ Profile(key[Address(r)]) = Profile(r) THEN {} ELSE {Profile(r)})} :
       /\ key' = (IF free /\ OptOutHoldsAddress THEN [key EXCEPT ![a] = r] ELSE key)
       /\ unsubscribed' = unsub
       /\ markedKeys' = (IF ~free /\ Marks(f) /\ h # 0 THEN markedKeys \union {a} ELSE markedKeys)
       /\ markedProfiles' = markedProfiles \union NewProfileMark(f, Profile(r), unsub)
  /\ todo' = [todo EXCEPT ![f] = @ \ {r}]
  /\ UNCHANGED <<optedOut, status, pauses, holder, finished, pc, seen, seenOld, intent, old, outBefore, outRead, outLong, calledRead,
                 wroteExcluded, calledLong>>
\* A row of a profile that is opted out in another row. Only a run that has read
\* an opt-out checks it.
ProfileIsOut(f, r) ==
  SkipsWholeProfile /\ (seen[f] \ todo[f] # {}) /\ (Profile(r) \in unsubscribed \/ Profile(r) \in markedProfiles)
\* WriteSkip: such a row is skipped, and its own intent of an earlier run marked.
WriteSkip(f, r) ==
  /\ MayWrite(f) /\ r \in NextRows(f) /\ r \notin seen[f] /\ ProfileIsOut(f, r)
  /\ markedKeys' = (IF Marks(f) /\ key[Address(r)] # 0 /\ Profile(key[Address(r)]) = Profile(r) THEN markedKeys \union {Address(r)}
                    ELSE markedKeys)
  /\ unsubscribed' = (IF key[Address(r)] # 0 /\ Profile(key[Address(r)]) = Profile(r) THEN unsubscribed
                      ELSE unsubscribed \union {Profile(r)})
  /\ todo' = [todo EXCEPT ![f] = @ \ {r}]
  /\ UNCHANGED <<optedOut, status, pauses, holder, finished, pc, seen, seenOld, key, intent, markedProfiles, old, outBefore, outRead,
                 outLong, calledRead, wroteExcluded, calledLong>>
\* WriteIntent: any other row becomes an intent, if no row holds its address.
WriteIntent(f, r) ==
  /\ MayWrite(f) /\ r \in NextRows(f) /\ r \notin seen[f] /\ ~ProfileIsOut(f, r)
  /\ \E free \in {key[Address(r)] = 0} :
       /\ key' = (IF free THEN [key EXCEPT ![Address(r)] = r] ELSE key)
       /\ intent' = (IF free THEN [intent EXCEPT ![r] = "ready"] ELSE intent)
       /\ old' = (IF free /\ seenOld[f] /\ WaitsFromReading THEN old \union {r} ELSE old)
       /\ wroteExcluded' = (wroteExcluded \/ (free /\ Excluded(r, seen[f])))
  /\ todo' = [todo EXCEPT ![f] = @ \ {r}]
  /\ UNCHANGED <<optedOut, status, pauses, holder, finished, pc, seen, seenOld, unsubscribed, markedKeys, markedProfiles, outBefore,
                 outRead, outLong, calledRead, calledLong>>
\* Finish: the audience was read to its end.
Finish(f) ==
  /\ pc[f] = "reading" /\ todo[f] = {} /\ holder = f
  /\ finished' = TRUE /\ outRead' = outBefore[f] /\ Forget(f)
  /\ UNCHANGED <<optedOut, status, pauses, key, intent, unsubscribed, markedKeys, markedProfiles, old, outLong, calledRead,
                 wroteExcluded, calledLong>>

\* Work claims an intent and calls it, or skips it: by its mark, or by what the
\* sender reads again of the profile if the intent has waited for the bound.
Skips(r) ==
  \/ ClaimReadsMarks /\ Address(r) \in markedKeys
  \/ ReadsOldAgain /\ r \in old /\ \E o \in optedOut : Profile(o) = Profile(r)
Work(r) ==
  /\ intent[r] = "ready" /\ status = "sending"
  /\ \E skips \in {Skips(r)} :
       /\ intent' = [intent EXCEPT ![r] = IF skips THEN "skipped" ELSE "called"]
       /\ calledRead' = (calledRead \/ (~skips /\ Excluded(r, outRead)))
       /\ calledLong' = (calledLong \/ (~skips /\ (\E o \in outLong : Profile(o) = Profile(r))))
  /\ UNCHANGED <<optedOut, status, pauses, holder, finished, pc, seen, todo, seenOld, key, unsubscribed, markedKeys, markedProfiles, old,
                 outBefore, outRead, outLong, wroteExcluded>>

Next ==
  \/ \E r \in Rows : OptOut(r)
  \/ BoundPasses
  \/ Pause
  \/ Resume
  \/ \E f \in Runs : Fanout(f)
  \/ \E f \in Runs : Stop(f)
  \/ \E f \in Runs : \E r \in Rows : WriteOptOut(f, r)
  \/ \E f \in Runs : \E r \in Rows : WriteSkip(f, r)
  \/ \E f \in Runs : \E r \in Rows : WriteIntent(f, r)
  \/ \E f \in Runs : Finish(f)
  \/ \E r \in Rows : Work(r)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state: a row with an intent holds its address.
TypeOK == \A r \in Rows : (intent[r] # "none") => (key[Address(r)] = r)
\* A profile that has been opted out for the bound is not sent to, as after a
\* pause that is longer than the bound.
NoCallLongAfterOptOut == ~calledLong
\* After a run has read the audience to its end, no profile and no address is
\* sent to that had opted out before the run began, as during a pause.
NoCallAfterOptOutIsRead == ~calledRead
\* A run writes no intent that an opt-out that it has read excludes.
NoIntentAgainstOptOut == ~wroteExcluded

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverSkippedByMark == ~\E r \in Rows : intent[r] = "skipped" /\ r \notin old
NeverSkippedByRecheck == ~\E r \in Rows : intent[r] = "skipped" /\ Address(r) \notin markedKeys
NeverMarkedForAnother == ~(intent[3] = "skipped" /\ optedOut = {2} /\ 2 \in markedKeys)
NeverCalledWithinBound == ~\E r \in Rows : intent[r] = "called" /\ pauses < Pauses /\ r \in old /\ Excluded(r, optedOut)
NeverLateRun == ~\E f \in Runs : pc[f] = "reading" /\ holder # f /\ finished
=============================================================================
