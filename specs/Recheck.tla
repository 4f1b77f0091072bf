------------------------------- MODULE Recheck -------------------------------
\* Consent, which is read again before a row is called that has waited long.
\*
\* Modelled: one row of a batch, written when its audience was read, its two
\* attempts, each in its own batch, processes that claim it and remember which
\* batches they have read again, a profile that withdraws, and a data source
\* that is down for a time. Time is a tick.
\*
\* Left out, and why that is sound:
\* - Several rows: those of a batch are read together, and each ends on its
\*   own.
\* - The duration of a claim: the wait is measured when the batch is claimed,
\*   and no call begins later than a lease after that. So "the bound"
\*   (RecheckAfter) is the bound and a lease.
\* - Why a row is unwanted (opted out, not in the audience any more, another
\*   address).
\* - Leases, windows and evidence: Batch.tla, SendingEngine.tla.
EXTENDS Naturals

CONSTANTS
  Processes,    \* processes, each with its own memory
  RecheckAfter, \* the bound: after it a row is read again
  Outages,      \* how often the data source is down
  Retries       \* how often the row is deferred

CONSTANTS            \* Guards. TRUE in the design; each is FALSE in its own mutant
  ChecksOld,         \* a row that has waited for the bound is read again
  AgeOfFirstAttempt, \* a second attempt has the age of the first
  MemoryExpires,     \* what was read again is remembered for the bound
  WaitsForSource,    \* while the data source is down no row is called
  OutageSkipsNoRow,  \* ... and no row is skipped
  SkipsUnwanted,     \* a row that is not wanted any more is skipped
  BecomesDueAgain    \* a batch that was released is due again

VARIABLES
  status,          \* ready, claimed, lost (the row's batch); called, skipped (the row)
  attempt,         \* 1 or 2
  rowAge,          \* ticks since the row was written
  batchAge,        \* ticks since the batch of this attempt was made
  wanted,          \* the profile wants the message
  sourceDown,      \* the data source is down
  outages,         \* outages left
  retries,         \* deferrals left
  pc,              \* process -> idle, reading, calling
  checked,         \* process -> attempt -> ticks since it last found the row wanted; RecheckAfter: longer ago, or never
  readAge,         \* history: ticks since the audience last had the row as wanted
  sinceWithdrawal, \* history: ticks since the profile has withdrawn
  calledOnOldData, \* history: the row was called on data older than the bound
  calledLate,      \* history: the row was called the bound after the withdrawal
  skippedWanted    \* history: the row was skipped although the profile wants it

vars == <<status, attempt, rowAge, batchAge, wanted, sourceDown, outages, retries, pc, checked, readAge, sinceWithdrawal,
          calledOnOldData, calledLate, skippedWanted>>

OneMore(t) == IF t < RecheckAfter THEN t + 1 ELSE RecheckAfter

Init ==
  /\ status = "ready" /\ attempt = 1 /\ rowAge = 0 /\ batchAge = 0 /\ wanted = TRUE /\ sourceDown = FALSE /\ outages = Outages
  /\ retries = Retries
  /\ pc = [n \in Processes |-> "idle"] /\ checked = [n \in Processes |-> [a \in {1, 2} |-> RecheckAfter]]
  /\ readAge = 0 /\ sinceWithdrawal = 0 /\ calledOnOldData = FALSE /\ calledLate = FALSE /\ skippedWanted = FALSE

\* Tick: time passes, except during a claim.
Tick ==
  /\ status = "ready" /\ (rowAge < RecheckAfter \/ batchAge < RecheckAfter \/ readAge < RecheckAfter \/ sinceWithdrawal < RecheckAfter)
  /\ rowAge' = OneMore(rowAge) /\ batchAge' = OneMore(batchAge) /\ readAge' = OneMore(readAge)
  /\ sinceWithdrawal' = (IF wanted THEN 0 ELSE OneMore(sinceWithdrawal))
  /\ checked' = [n \in Processes |-> [a \in {1, 2} |-> IF MemoryExpires \/ checked[n][a] = RecheckAfter THEN OneMore(checked[n][a]) ELSE 0]]
  /\ UNCHANGED <<status, attempt, wanted, sourceDown, outages, retries, pc, calledOnOldData, calledLate, skippedWanted>>
\* Withdraw: the profile opts out, or is not in the audience any more.
Withdraw ==
  /\ wanted /\ wanted' = FALSE
  /\ UNCHANGED <<status, attempt, rowAge, batchAge, sourceDown, outages, retries, pc, checked, readAge, sinceWithdrawal,
                 calledOnOldData, calledLate, skippedWanted>>
\* SourceFails and SourceReturns: the data source is down for a time.
SourceFails ==
  /\ ~sourceDown /\ outages > 0 /\ sourceDown' = TRUE /\ outages' = outages - 1
  /\ UNCHANGED <<status, attempt, rowAge, batchAge, wanted, retries, pc, checked, readAge, sinceWithdrawal, calledOnOldData, calledLate,
                 skippedWanted>>
SourceReturns ==
  /\ sourceDown /\ sourceDown' = FALSE
  /\ UNCHANGED <<status, attempt, rowAge, batchAge, wanted, outages, retries, pc, checked, readAge, sinceWithdrawal, calledOnOldData,
                 calledLate, skippedWanted>>

\* Claim measures how long the row has waited.
Waited == IF AgeOfFirstAttempt THEN rowAge ELSE batchAge
Claim(n) ==
  /\ status = "ready" /\ status' = "claimed"
  /\ pc' = [pc EXCEPT ![n] = IF Waited >= RecheckAfter /\ checked[n][attempt] >= RecheckAfter /\ ChecksOld THEN "reading" ELSE "calling"]
  /\ UNCHANGED <<attempt, rowAge, batchAge, wanted, sourceDown, outages, retries, checked, readAge, sinceWithdrawal, calledOnOldData,
                 calledLate, skippedWanted>>
\* Recheck reads the audience, outside any transaction.
Recheck(n) ==
  /\ pc[n] = "reading"
  /\ \E ends \in {(~sourceDown /\ ~wanted /\ SkipsUnwanted) \/ (sourceDown /\ ~OutageSkipsNoRow)} :
     \E waits \in {sourceDown /\ OutageSkipsNoRow /\ WaitsForSource} :
       /\ status' = (IF ends THEN "skipped" ELSE IF ~waits THEN "claimed" ELSE IF BecomesDueAgain THEN "ready" ELSE "lost")
       /\ pc' = [pc EXCEPT ![n] = IF ends \/ waits THEN "idle" ELSE "calling"]
       /\ checked' = (IF sourceDown \/ ends THEN checked ELSE [checked EXCEPT ![n][attempt] = 0])
       /\ skippedWanted' = (skippedWanted \/ (ends /\ wanted))
  /\ readAge' = (IF ~sourceDown /\ wanted THEN 0 ELSE readAge)
  /\ UNCHANGED <<attempt, rowAge, batchAge, wanted, sourceDown, outages, retries, sinceWithdrawal, calledOnOldData, calledLate>>
\* Call: the row is called. It is accepted, deferred, or its outcome is
\* unknown.
Call(n) ==
  /\ pc[n] = "calling" /\ pc' = [pc EXCEPT ![n] = "idle"]
  /\ calledOnOldData' = (calledOnOldData \/ readAge >= RecheckAfter) /\ calledLate' = (calledLate \/ sinceWithdrawal >= RecheckAfter)
  /\ \/ status' = "called" /\ UNCHANGED <<attempt, batchAge, retries>>
     \/ retries > 0 /\ retries' = retries - 1 /\ status' = "ready" /\ UNCHANGED <<attempt, batchAge>>
     \/ attempt = 1 /\ attempt' = 2 /\ batchAge' = 0 /\ status' = "ready" /\ UNCHANGED retries
  /\ UNCHANGED <<rowAge, wanted, sourceDown, outages, checked, readAge, sinceWithdrawal, skippedWanted>>
\* Release: the process shuts down, and releases the batch without a call.
Release(n) ==
  /\ pc[n] # "idle" /\ pc' = [pc EXCEPT ![n] = "idle"] /\ status' = "ready" /\ retries > 0 /\ retries' = retries - 1
  /\ UNCHANGED <<attempt, rowAge, batchAge, wanted, sourceDown, outages, checked, readAge, sinceWithdrawal, calledOnOldData, calledLate,
                 skippedWanted>>

Next ==
  \/ Tick
  \/ Withdraw
  \/ SourceFails
  \/ SourceReturns
  \/ \E n \in Processes : Claim(n)
  \/ \E n \in Processes : Recheck(n)
  \/ \E n \in Processes : Call(n)
  \/ \E n \in Processes : Release(n)

Fairness ==
  /\ WF_vars(Tick) /\ WF_vars(SourceReturns) /\ WF_vars(\E n \in Processes : Claim(n))
  /\ \A n \in Processes : WF_vars(Recheck(n)) /\ WF_vars(Call(n))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state: one process has the claim.
TypeOK == (status = "claimed") = (\E n \in Processes : pc[n] # "idle")
\* No row is called on data older than the bound.
NoCallOnOldData == ~calledOnOldData
\* No row is called the bound after its profile has withdrawn, in either
\* attempt.
NoCallAfterWithdrawal == ~calledLate
\* Only a row that is not wanted is skipped.
SkippedIsUnwanted == ~skippedWanted
\* Every row ends, also after an outage of the data source.
EveryRowEnds == <>(status \in {"called", "skipped"})

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverSkipped == status # "skipped"
NeverSkippedSecond == ~(status = "skipped" /\ attempt = 2)
NeverRemembered == ~\E n \in Processes :
  pc[n] = "calling" /\ rowAge >= RecheckAfter /\ checked[n][attempt] > 0 /\ checked[n][attempt] < RecheckAfter
NeverCalledWithdrawn == ~(status = "called" /\ ~wanted)
=============================================================================
