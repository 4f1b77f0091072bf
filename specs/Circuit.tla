------------------------------- MODULE Circuit -------------------------------
\* The circuit of a provider, which all nodes share: its row in provider_meters.
\*
\* Modelled: a provider that fails, comes back or refuses the account, workers
\* that claim batches while the circuit is closed and probe while it is open, a
\* prober that dies or finds nothing out, calls that are answered late, work
\* that is due or not, and the pause after an outage that lasts. Time is a tick:
\* what the meter keeps as a time stands here as the ticks since or until then.
\*
\* Left out, and why that is sound:
\* - How many messages that are refused one after the other count as a failure of
\*   the provider: the failure is the same from then on.
\* - An answer of the provider that accepts nothing and is no failure of its own:
\*   it closes the circuit as an acceptance does, and pauses nothing.
\* - Several origins: a pause is of the one whose batch met the failure.
\* - The rate of the provider, which delays a call and forbids none.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers,  \* claims that can be alive at the same time
  NoOne,    \* no token
  First,    \* ticks from the opening to the first probe, doubled for each that fails ...
  Most,     \* ... at most
  Hold,     \* ticks until the lease of a probe that is not renewed expires
  Slack,    \* ticks between two failures that are no silence: back-off and how late a probe may come
  Forget,   \* ticks of silence after which a failure is a new matter
  Lasting,  \* ticks of an outage that pause
  Crashes,  \* how many probers and callers die
  Prompt    \* assumption: what is due is called, and answered, before Slack is over

CONSTANTS              \* Guards. TRUE in the design; each is FALSE in its own mutant
  ClaimReadsCircuit,   \* no batch is claimed behind an open circuit, but for a probe
  ProbeIsCas,          \* a probe begins only where no other is under way
  ProbeExpires,        \* ... or where its time is over
  BacksOff,            \* a probe that fails puts off the next
  OnlyProbeCloses,     \* an acceptance closes an open circuit only if it is the probe's
  KeepsFirst,          \* the cause of the opening is kept
  ForgetsOld,          \* ... but not beyond a long silence
  SilenceIsNoOutage,   \* ticks in which nothing was due do not count as an outage
  WaitsLasting,        \* a failure pauses only when the outage has lasted
  RefusalPauses        \* a definite refusal pauses at once

VARIABLES
  up,        \* the provider: up, down, refusing; back: up for good; gone: down for good
  due,       \* a batch of the provider is due
  open,      \* opened_at is not null
  wait,      \* ticks until open_until
  probes,    \* provider_meters.probes, as far as it matters
  token,     \* probe_token
  hold,      \* ticks until probe_until
  age,       \* ticks since opened_at
  fail,      \* ticks since failed_at
  first,     \* first_error
  paused,    \* the reason: no, errors, refused
  pc,        \* worker -> idle, calling
  probing,   \* worker -> its call is a probe
  gap,       \* worker -> ticks from failed_at to the begin of its claim; 0 if a failure came since
  crashes,   \* crashes left
  lasted,    \* history: ticks since the opening that were no silence
  cause,     \* history: what the first failure of this outage met
  intruded,  \* history: a call has begun behind an open circuit, and was no probe
  beside,    \* history: a probe has begun while another was under way
  apart,     \* history: ticks since the opening or the last probe that failed
  rushed,    \* history: a probe has begun before its back-off was over
  misclosed, \* history: the circuit was closed by what was no probe
  hasty,     \* history: an outage that had not lasted has paused
  tolerated  \* history: a definite refusal has not paused

vars == <<up, due, open, wait, probes, token, hold, age, fail, first, paused, pc, probing, gap, crashes,
          lasted, cause, intruded, beside, apart, rushed, misclosed, hasty, tolerated>>

Min(a, b) == IF a < b THEN a ELSE b
Less(a, b) == IF a > b THEN a - b ELSE 0
BackOff(n) == Min(IF n = 0 THEN First ELSE 2 * First, Most)
Works == up \in {"up", "back"}
Wanted == due /\ paused = "no"

Init ==
  /\ up = "up" /\ due = TRUE /\ open = FALSE /\ wait = 0 /\ probes = 0 /\ token = NoOne /\ hold = 0 /\ age = 0 /\ fail = 0 /\ first = "none"
  /\ paused = "no" /\ pc = [w \in Workers |-> "idle"] /\ probing = [w \in Workers |-> FALSE] /\ gap = [w \in Workers |-> 0] /\ crashes = Crashes
  /\ lasted = 0 /\ cause = "none" /\ intruded = FALSE /\ beside = FALSE /\ apart = 0 /\ rushed = FALSE /\ misclosed = FALSE /\ hasty = FALSE /\ tolerated = FALSE

-----------------------------------------------------------------------------
\* Silent: nothing is due and nobody calls, and it is later than a probe may be.
Silent == fail >= Slack /\ ~Wanted /\ \A w \in Workers : pc[w] = "idle"
\* Tick: time passes, and brings work or not.
Overdue == fail >= Slack /\ (\/ \E w \in Workers : pc[w] = "calling"
                            \/ Wanted /\ (~open \/ (wait = 0 /\ (token = NoOne \/ hold = 0))))
Tick ==
  /\ ~Prompt \/ ~Overdue
  /\ due' \in (IF up \in {"back", "gone"} THEN {TRUE} ELSE {TRUE, FALSE})
  /\ wait' = Less(wait, 1) /\ hold' = Less(hold, 1) /\ fail' = Min(fail + 1, Slack + Forget + 1)
  /\ age' = IF open THEN Min(age + 1, Lasting + Forget) ELSE 0
  /\ apart' = Min(apart + 1, Most) /\ lasted' = IF open /\ ~Silent THEN Min(lasted + 1, Lasting) ELSE lasted
  /\ UNCHANGED <<up, open, probes, token, first, paused, pc, probing, gap, crashes, cause, intruded, beside, rushed, misclosed, hasty, tolerated>>
\* Change: the provider fails or comes back, for a time or for good.
Change ==
  /\ up \in {"up", "down", "refusing"} /\ up' \in {"up", "down", "refusing", "back", "gone"} \ {up}
  /\ UNCHANGED <<due, open, wait, probes, token, hold, age, fail, first, paused, pc, probing, gap, crashes, lasted, cause,
                 intruded, beside, apart, rushed, misclosed, hasty, tolerated>>

\* Claim: a batch is claimed while the circuit is closed.
Claim(w) ==
  /\ pc[w] = "idle" /\ Wanted /\ (~open \/ ~ClaimReadsCircuit)
  /\ pc' = [pc EXCEPT ![w] = "calling"] /\ probing' = [probing EXCEPT ![w] = FALSE] /\ gap' = [gap EXCEPT ![w] = fail]
  /\ intruded' = (intruded \/ open)
  /\ UNCHANGED <<up, due, open, wait, probes, token, hold, age, fail, first, paused, crashes, lasted, cause, beside, apart, rushed, misclosed, hasty, tolerated>>
\* Probe: one claim takes the token, when the back-off is over, and calls.
Probe(w) ==
  /\ pc[w] = "idle" /\ Wanted /\ open /\ wait = 0
  /\ token = NoOne \/ (hold = 0 /\ ProbeExpires) \/ ~ProbeIsCas
  /\ pc' = [pc EXCEPT ![w] = "calling"] /\ probing' = [probing EXCEPT ![w] = TRUE] /\ gap' = [gap EXCEPT ![w] = fail]
  /\ token' = w /\ hold' = Hold
  /\ beside' = (beside \/ (hold > 0 /\ \E v \in Workers : pc[v] = "calling" /\ probing[v]))
  /\ rushed' = (rushed \/ apart < BackOff(probes))
  /\ UNCHANGED <<up, due, open, wait, probes, age, fail, first, paused, crashes, lasted, cause, intruded, misclosed, hasty, tolerated, apart>>

Ends(w) == pc' = [pc EXCEPT ![w] = "idle"] /\ probing' = [probing EXCEPT ![w] = FALSE]
\* Recovered: a call is accepted. It ends the failures, unless the circuit is open
\* and it is no probe: it may have been on its way when the failure came.
Recovered(w) ==
  /\ pc[w] = "calling" /\ Works /\ Ends(w) /\ gap' = [gap EXCEPT ![w] = 0]
  /\ \E closes \in {~open \/ token = w \/ ~OnlyProbeCloses} :
       /\ open' = (open /\ ~closes) /\ wait' = (IF closes THEN 0 ELSE wait) /\ probes' = (IF closes THEN 0 ELSE probes)
       /\ token' = (IF closes THEN NoOne ELSE token) /\ hold' = (IF closes THEN 0 ELSE hold) /\ age' = (IF closes THEN 0 ELSE age)
       /\ first' = (IF closes THEN "none" ELSE first) /\ cause' = (IF closes THEN "none" ELSE cause) /\ lasted' = (IF closes THEN 0 ELSE lasted)
       /\ misclosed' = (misclosed \/ (open /\ closes /\ ~probing[w]))
  /\ UNCHANGED <<up, due, fail, paused, crashes, intruded, beside, apart, rushed, hasty, tolerated>>
\* Failed: a call meets the failure of the provider: the meter's fail and pauseFor.
Failed(w, what) ==
  /\ pc[w] = "calling" /\ ~Works /\ Ends(w) /\ gap' = [v \in Workers |-> 0] /\ fail' = 0
  /\ \E silent \in {Less(gap[w], Slack)} : \E late \in {Less(gap[w], Slack) > Forget} : \E mine \in {open /\ token = w} :
     \E old \in {IF late /\ ForgetsOld THEN 0 ELSE IF SilenceIsNoOutage THEN Less(age, silent) ELSE age} :
     \E n \in {IF late /\ ForgetsOld THEN 0 ELSE probes} : \E pauses \in {open /\ (old >= Lasting \/ ~WaitsLasting)} :
       /\ open' = TRUE /\ age' = (IF open THEN old ELSE 0) /\ apart' = (IF mine \/ ~open THEN 0 ELSE apart)
       /\ first' = (IF ~open \/ (late /\ ForgetsOld) \/ ~KeepsFirst THEN what ELSE first)
       /\ cause' = (IF ~open \/ late THEN what ELSE cause) /\ lasted' = (IF ~open \/ late THEN 0 ELSE lasted)
       /\ probes' = (IF mine THEN 1 ELSE n)
       /\ wait' = (IF ~BacksOff THEN 0 ELSE IF ~open THEN First ELSE IF mine THEN BackOff(n + 1) ELSE wait)
       /\ token' = (IF mine THEN NoOne ELSE token) /\ hold' = (IF mine THEN 0 ELSE hold)
       /\ paused' = (IF up = "refusing" /\ RefusalPauses THEN "refused" ELSE IF pauses THEN "errors" ELSE paused)
       /\ hasty' = (hasty \/ (pauses /\ (lasted < Lasting \/ late)))
       /\ tolerated' = (tolerated \/ (up = "refusing" /\ paused' = "no"))
  /\ UNCHANGED <<up, due, crashes, intruded, beside, rushed, misclosed>>
\* EndProbe: a probe has found nothing out, and lets others.
EndProbe(w) ==
  /\ pc[w] = "calling" /\ probing[w] /\ Ends(w) /\ gap' = [gap EXCEPT ![w] = 0]
  /\ \E mine \in {token = w} :
       /\ token' = (IF mine THEN NoOne ELSE token) /\ hold' = (IF mine THEN 0 ELSE hold) /\ wait' = (IF mine THEN First ELSE wait)
  /\ crashes > 0 /\ crashes' = crashes - 1
  /\ UNCHANGED <<up, due, open, probes, age, fail, first, paused, lasted, cause, intruded, beside, apart, rushed, misclosed, hasty, tolerated>>
\* Crash: a caller or prober dies.
Crash(w) ==
  /\ pc[w] = "calling" /\ crashes > 0 /\ crashes' = crashes - 1 /\ Ends(w) /\ gap' = [gap EXCEPT ![w] = 0]
  /\ UNCHANGED <<up, due, open, wait, probes, token, hold, age, fail, first, paused, lasted, cause, intruded, beside, apart, rushed, misclosed, hasty, tolerated>>
\* Resume: a person resumes what was paused.
Resume ==
  /\ paused # "no" /\ paused' = "no"
  /\ UNCHANGED <<up, due, open, wait, probes, token, hold, age, fail, first, pc, probing, gap, crashes, lasted, cause,
                 intruded, beside, apart, rushed, misclosed, hasty, tolerated>>

Next ==
  \/ Tick
  \/ Change
  \/ \E w \in Workers : Claim(w)
  \/ \E w \in Workers : Probe(w)
  \/ \E w \in Workers : Recovered(w)
  \/ \E w \in Workers : Failed(w, "a")
  \/ \E w \in Workers : Failed(w, "b")
  \/ \E w \in Workers : EndProbe(w)
  \/ \E w \in Workers : Crash(w)
  \/ Resume

\* Time passes, and what is due is claimed and answered.
Fairness ==
  /\ WF_vars(Tick) /\ WF_vars(\E w \in Workers : Claim(w)) /\ WF_vars(\E w \in Workers : Probe(w))
  /\ \A w \in Workers : WF_vars(Recovered(w)) /\ WF_vars(Failed(w, "a"))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state: only an open circuit is probed.
TypeOK == /\ open \/ (token = NoOne /\ wait = 0 /\ age = 0)
          /\ age <= Lasting + Forget /\ probes \in {0, 1}
\* Behind an open circuit nobody calls but probes.
OnlyProbesCall == ~intruded
\* One probe is under way at a time, unless the prober is taken for dead.
OneProbe == ~beside
\* No probe begins before its back-off is over.
ProbesAreApart == ~rushed
\* Only a probe closes an open circuit.
OnlyAProbeCloses == ~misclosed
\* What is shown as the first cause is what the first call of this outage met.
FirstCause == open => first = cause
\* What fails pauses only when the outage has lasted, not counting silence.
PauseMeansOutage == ~hasty
\* A definite refusal pauses.
RefusalIsNotTolerated == ~tolerated
\* When the provider is back and there is work, the circuit closes by itself.
ClosesByItself == (up = "back") ~> (~open \/ paused # "no")
\* When the provider is gone and there is work, what needs it is paused.
OutagePauses == (up = "gone") ~> (paused # "no")

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverClosedAgain == ~(up = "back" /\ ~open /\ fail > 0 /\ fail <= Slack)
NeverPausedForErrors == paused # "errors"
NeverReplaced == ~\E w, v \in Workers : w # v /\ token = w /\ probing[v] /\ pc[v] = "calling"
NeverForgotten == ~(open /\ first = "b" /\ cause = "b" /\ probes = 1 /\ age = 0)
NeverSilent == ~(open /\ Silent)
=============================================================================
