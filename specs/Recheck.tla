------------------------------- MODULE Recheck -------------------------------
\* Consent that is read again before a row is called that has waited for long.
\*
\* Modelled: one row of a batch, written when its audience was read, its two
\* attempts, each in a batch of its own, nodes that claim it and remember which
\* batches they have read again, a profile that withdraws, and a source that is
\* away for a time. Time is a tick.
\*
\* Left out, and why that is sound:
\* - Several rows: those of a batch are read together, and end each for itself.
\* - How long a claim lasts: the wait is measured when the batch is claimed, and no
\*   call begins later than a lease after that. So "the bound" is the bound and a lease.
\* - What makes a row unwanted (opted out, left the audience, another address).
\* - Leases, windows and evidence: Batch.tla, SendingEngine.tla.
EXTENDS Naturals

CONSTANTS
  Nodes,    \* processes, each with a memory of its own
  Bound,    \* RecheckAfter
  Outages,  \* how often the source is away
  Retries   \* how often the row is put off

CONSTANTS           \* Guards. TRUE in the design; each is FALSE in its own mutant
  ChecksOld,        \* a row that has waited for the bound is read again
  AgeOfTheFirst,    \* a second attempt is as old as the first
  MemoryExpires,    \* what was read again is remembered for the bound
  WaitsForSource,   \* while the source is away nobody is called
  AwayEndsNobody,   \* ... and nobody is skipped
  EndsUnwanted,     \* what is not wanted any more is skipped
  ComesAgain        \* what was given back is due again

VARIABLES
  state,    \* the row's batch: ready, taken, lost; the row: called, skipped
  attempt,  \* 1 or 2
  age,      \* ticks since the row was written
  young,    \* ticks since the batch of this attempt was made
  wants,    \* the profile wants it
  away,     \* the source is away
  outages,  \* left
  retries,  \* left
  pc,       \* node -> idle, asks, calls
  checked,  \* node -> attempt -> ticks since it found nothing to end; Bound: longer, or never
  readAge,  \* history: ticks since the audience last said that it is wanted
  gone,     \* history: ticks since the profile has withdrawn
  unread,   \* history: it was called, and what was known was older than the bound
  late,     \* history: it was called the bound after the profile had withdrawn
  wronged   \* history: it was skipped although the profile wants it

vars == <<state, attempt, age, young, wants, away, outages, retries, pc, checked, readAge, gone, unread, late, wronged>>

Up(t) == IF t < Bound THEN t + 1 ELSE Bound

Init ==
  /\ state = "ready" /\ attempt = 1 /\ age = 0 /\ young = 0 /\ wants = TRUE /\ away = FALSE /\ outages = Outages /\ retries = Retries
  /\ pc = [n \in Nodes |-> "idle"] /\ checked = [n \in Nodes |-> [a \in {1, 2} |-> Bound]]
  /\ readAge = 0 /\ gone = 0 /\ unread = FALSE /\ late = FALSE /\ wronged = FALSE

\* Tick: time passes, but not under a claim.
Tick ==
  /\ state = "ready" /\ (age < Bound \/ young < Bound \/ readAge < Bound \/ gone < Bound)
  /\ age' = Up(age) /\ young' = Up(young) /\ readAge' = Up(readAge) /\ gone' = (IF wants THEN 0 ELSE Up(gone))
  /\ checked' = [n \in Nodes |-> [a \in {1, 2} |-> IF MemoryExpires \/ checked[n][a] = Bound THEN Up(checked[n][a]) ELSE 0]]
  /\ UNCHANGED <<state, attempt, wants, away, outages, retries, pc, unread, late, wronged>>
\* Withdraw: the profile opts out, or leaves the audience.
Withdraw ==
  /\ wants /\ wants' = FALSE
  /\ UNCHANGED <<state, attempt, age, young, away, outages, retries, pc, checked, readAge, gone, unread, late, wronged>>
\* Leave and Return: the source is away for a time.
Leave ==
  /\ ~away /\ outages > 0 /\ away' = TRUE /\ outages' = outages - 1
  /\ UNCHANGED <<state, attempt, age, young, wants, retries, pc, checked, readAge, gone, unread, late, wronged>>
Return ==
  /\ away /\ away' = FALSE
  /\ UNCHANGED <<state, attempt, age, young, wants, outages, retries, pc, checked, readAge, gone, unread, late, wronged>>

\* Claim measures how long the row has waited.
Waited == IF AgeOfTheFirst THEN age ELSE young
Claim(n) ==
  /\ state = "ready" /\ state' = "taken"
  /\ pc' = [pc EXCEPT ![n] = IF Waited >= Bound /\ checked[n][attempt] >= Bound /\ ChecksOld THEN "asks" ELSE "calls"]
  /\ UNCHANGED <<attempt, age, young, wants, away, outages, retries, checked, readAge, gone, unread, late, wronged>>
\* Recheck asks the audience, outside of any transaction.
Recheck(n) ==
  /\ pc[n] = "asks"
  /\ \E ends \in {(~away /\ ~wants /\ EndsUnwanted) \/ (away /\ ~AwayEndsNobody)} : \E waits \in {away /\ AwayEndsNobody /\ WaitsForSource} :
       /\ state' = (IF ends THEN "skipped" ELSE IF ~waits THEN "taken" ELSE IF ComesAgain THEN "ready" ELSE "lost")
       /\ pc' = [pc EXCEPT ![n] = IF ends \/ waits THEN "idle" ELSE "calls"]
       /\ checked' = (IF away \/ ends THEN checked ELSE [checked EXCEPT ![n][attempt] = 0])
       /\ wronged' = (wronged \/ (ends /\ wants))
  /\ readAge' = (IF ~away /\ wants THEN 0 ELSE readAge)
  /\ UNCHANGED <<attempt, age, young, wants, away, outages, retries, gone, unread, late>>
\* Call: the row is called. It is taken, put off, or its outcome is unknown.
Call(n) ==
  /\ pc[n] = "calls" /\ pc' = [pc EXCEPT ![n] = "idle"]
  /\ unread' = (unread \/ readAge >= Bound) /\ late' = (late \/ gone >= Bound)
  /\ \/ state' = "called" /\ UNCHANGED <<attempt, young, retries>>
     \/ retries > 0 /\ retries' = retries - 1 /\ state' = "ready" /\ UNCHANGED <<attempt, young>>
     \/ attempt = 1 /\ attempt' = 2 /\ young' = 0 /\ state' = "ready" /\ UNCHANGED retries
  /\ UNCHANGED <<age, wants, away, outages, checked, readAge, gone, wronged>>
\* Release: the node shuts down, and gives it back uncalled.
Release(n) ==
  /\ pc[n] # "idle" /\ pc' = [pc EXCEPT ![n] = "idle"] /\ state' = "ready" /\ retries > 0 /\ retries' = retries - 1
  /\ UNCHANGED <<attempt, age, young, wants, away, outages, checked, readAge, gone, unread, late, wronged>>

Next ==
  \/ Tick
  \/ Withdraw
  \/ Leave
  \/ Return
  \/ \E n \in Nodes : Claim(n)
  \/ \E n \in Nodes : Recheck(n)
  \/ \E n \in Nodes : Call(n)
  \/ \E n \in Nodes : Release(n)

Fairness ==
  /\ WF_vars(Tick) /\ WF_vars(Return) /\ WF_vars(\E n \in Nodes : Claim(n))
  /\ \A n \in Nodes : WF_vars(Recheck(n)) /\ WF_vars(Call(n))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state: a claim is one node's.
TypeOK == (state = "taken") = (\E n \in Nodes : pc[n] # "idle")
\* Nothing is called on knowledge that is older than the bound.
NeverCalledUnread == ~unread
\* Nothing is called the bound after its profile has withdrawn, in either attempt.
GoneIsNotCalled == ~late
\* Only what is not wanted is skipped.
SkippedIsUnwanted == ~wronged
\* Every row ends, also where the source was away.
EveryRowEnds == <>(state \in {"called", "skipped"})

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverSkipped == state # "skipped"
NeverSkippedSecond == ~(state = "skipped" /\ attempt = 2)
NeverRemembered == ~\E n \in Nodes : pc[n] = "calls" /\ age >= Bound /\ checked[n][attempt] > 0 /\ checked[n][attempt] < Bound
NeverCalledWithdrawn == ~(state = "called" /\ ~wants)
=============================================================================
