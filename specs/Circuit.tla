------------------------------- MODULE Circuit -------------------------------
\* The circuit of a provider, which all processes share: its row in
\* provider_meters.
\*
\* Modelled: a provider that fails, recovers or refuses the account, workers
\* that claim batches while the circuit is closed and probe while it is open, a
\* prober that crashes or ends without a result, calls that are answered late,
\* work that is due or not, and the pause after a long outage. Time is a tick:
\* a time of the meter is modelled as the ticks since or until then.
\*
\* Left out, and why that is sound:
\* - How many refused messages in a row count as a failure of the provider: the
\*   failure has the same effect.
\* - An answer of the provider that accepts nothing and is not its own failure:
\*   it closes the circuit as an acceptance does, and pauses nothing.
\* - Several origins: a pause concerns the origin whose batch met the failure.
\* - The rate of the provider, which delays a call and forbids none.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers,      \* claims that can be alive at the same time
  NoToken,      \* no token
  FirstBackOff, \* ticks from the opening to the first probe, doubled after each failed probe ...
  MaxBackOff,   \* ... up to this
  ProbeLease,   \* ticks until the lease of a probe expires, unless it is renewed
  MaxGap,       \* ticks between two failures that are not idle: the back-off and the delay of a probe
  ForgetAfter,  \* idle ticks after which a failure begins a new outage
  PauseAfter,   \* ticks of an outage that pause
  Crashes,      \* how many probers and callers crash
  CallsInTime   \* assumption: work that is due is called and answered within MaxGap

CONSTANTS             \* Guards. TRUE in the design; each is FALSE in its own mutant
  ClaimReadsCircuit,  \* no batch is claimed while the circuit is open, except for a probe
  ProbeIsCas,         \* a probe begins only if no other is running
  ProbeExpires,       \* ... or if its time is over
  BacksOff,           \* a failed probe delays the next
  OnlyProbeCloses,    \* an acceptance closes an open circuit only if it is the probe's
  KeepsFirst,         \* the cause of the opening is kept
  ForgetsOld,         \* ... but not beyond a long idle time
  IdleTimeIsNoOutage, \* ticks without work due do not count as an outage
  WaitsForOutage,     \* a failure pauses only after a long outage
  RefusalPauses       \* a definite refusal pauses at once

VARIABLES
  provider,        \* the provider: up, down, refusing; up_for_good, down_for_good: it does not change any more
  due,             \* a batch of the provider is due
  open,            \* opened_at is not null
  backOff,         \* ticks until open_until
  probes,          \* provider_meters.probes, up to 1
  token,           \* probe_token
  probeLeft,       \* ticks until probe_until
  openFor,         \* ticks since opened_at
  sinceFailure,    \* ticks since failed_at
  firstError,      \* first_error
  paused,          \* the reason: no, errors, refused
  pc,              \* worker -> idle, calling
  probing,         \* worker -> its call is a probe
  gapBefore,       \* worker -> ticks from failed_at to the begin of its claim; 0 after a failure since
  crashes,         \* crashes left
  outageTicks,     \* history: ticks since the opening that were not idle
  realCause,       \* history: the cause of the first failure of this outage
  calledWhileOpen, \* history: a call that was no probe has begun while the circuit was open
  twoProbes,       \* history: a probe has begun while another was running
  sinceProbe,      \* history: ticks since the opening or the last failed probe
  probedEarly,     \* history: a probe has begun before its back-off was over
  closedByOther,   \* history: the circuit was closed by a call that was no probe
  pausedEarly,     \* history: a short outage has paused
  refusalIgnored   \* history: a definite refusal has not paused

vars == <<provider, due, open, backOff, probes, token, probeLeft, openFor, sinceFailure, firstError, paused, pc, probing, gapBefore,
          crashes, outageTicks, realCause, calledWhileOpen, twoProbes, sinceProbe, probedEarly, closedByOther, pausedEarly,
          refusalIgnored>>

Min(a, b) == IF a < b THEN a ELSE b
Minus(a, b) == IF a > b THEN a - b ELSE 0
BackOff(n) == Min(IF n = 0 THEN FirstBackOff ELSE 2 * FirstBackOff, MaxBackOff)
ProviderWorks == provider \in {"up", "up_for_good"}
WorkDue == due /\ paused = "no"

Init ==
  /\ provider = "up" /\ due = TRUE /\ open = FALSE /\ backOff = 0 /\ probes = 0 /\ token = NoToken /\ probeLeft = 0 /\ openFor = 0
  /\ sinceFailure = 0 /\ firstError = "none"
  /\ paused = "no" /\ pc = [w \in Workers |-> "idle"] /\ probing = [w \in Workers |-> FALSE] /\ gapBefore = [w \in Workers |-> 0]
  /\ crashes = Crashes
  /\ outageTicks = 0 /\ realCause = "none" /\ calledWhileOpen = FALSE /\ twoProbes = FALSE /\ sinceProbe = 0 /\ probedEarly = FALSE
  /\ closedByOther = FALSE /\ pausedEarly = FALSE /\ refusalIgnored = FALSE

-----------------------------------------------------------------------------
\* Idle: no work is due, no call is running, and a probe could have come
\* before.
Idle == sinceFailure >= MaxGap /\ ~WorkDue /\ \A w \in Workers : pc[w] = "idle"
\* Tick: time passes, and may bring work.
Overdue == /\ sinceFailure >= MaxGap
           /\ \/ \E w \in Workers : pc[w] = "calling"
              \/ WorkDue /\ (~open \/ (backOff = 0 /\ (token = NoToken \/ probeLeft = 0)))
Tick ==
  /\ ~CallsInTime \/ ~Overdue
  /\ due' \in (IF provider \in {"up_for_good", "down_for_good"} THEN {TRUE} ELSE {TRUE, FALSE})
  /\ backOff' = Minus(backOff, 1) /\ probeLeft' = Minus(probeLeft, 1) /\ sinceFailure' = Min(sinceFailure + 1, MaxGap + ForgetAfter + 1)
  /\ openFor' = IF open THEN Min(openFor + 1, PauseAfter + ForgetAfter) ELSE 0
  /\ sinceProbe' = Min(sinceProbe + 1, MaxBackOff) /\ outageTicks' = IF open /\ ~Idle THEN Min(outageTicks + 1, PauseAfter) ELSE outageTicks
  /\ UNCHANGED <<provider, open, probes, token, firstError, paused, pc, probing, gapBefore, crashes, realCause, calledWhileOpen,
                 twoProbes, probedEarly, closedByOther, pausedEarly, refusalIgnored>>
\* ChangeProvider: the provider fails or recovers, for a time or permanently.
ChangeProvider ==
  /\ provider \in {"up", "down", "refusing"} /\ provider' \in {"up", "down", "refusing", "up_for_good", "down_for_good"} \ {provider}
  /\ UNCHANGED <<due, open, backOff, probes, token, probeLeft, openFor, sinceFailure, firstError, paused, pc, probing, gapBefore,
                 crashes, outageTicks, realCause, calledWhileOpen, twoProbes, sinceProbe, probedEarly, closedByOther, pausedEarly,
                 refusalIgnored>>

\* Claim: a batch is claimed while the circuit is closed.
Claim(w) ==
  /\ pc[w] = "idle" /\ WorkDue /\ (~open \/ ~ClaimReadsCircuit)
  /\ pc' = [pc EXCEPT ![w] = "calling"] /\ probing' = [probing EXCEPT ![w] = FALSE] /\ gapBefore' = [gapBefore EXCEPT ![w] = sinceFailure]
  /\ calledWhileOpen' = (calledWhileOpen \/ open)
  /\ UNCHANGED <<provider, due, open, backOff, probes, token, probeLeft, openFor, sinceFailure, firstError, paused, crashes,
                 outageTicks, realCause, twoProbes, sinceProbe, probedEarly, closedByOther, pausedEarly, refusalIgnored>>
\* Probe: one claim takes the token after the back-off, and calls.
Probe(w) ==
  /\ pc[w] = "idle" /\ WorkDue /\ open /\ backOff = 0
  /\ token = NoToken \/ (probeLeft = 0 /\ ProbeExpires) \/ ~ProbeIsCas
  /\ pc' = [pc EXCEPT ![w] = "calling"] /\ probing' = [probing EXCEPT ![w] = TRUE] /\ gapBefore' = [gapBefore EXCEPT ![w] = sinceFailure]
  /\ token' = w /\ probeLeft' = ProbeLease
  /\ twoProbes' = (twoProbes \/ (probeLeft > 0 /\ \E v \in Workers : pc[v] = "calling" /\ probing[v]))
  /\ probedEarly' = (probedEarly \/ sinceProbe < BackOff(probes))
  /\ UNCHANGED <<provider, due, open, backOff, probes, openFor, sinceFailure, firstError, paused, crashes, outageTicks, realCause,
                 calledWhileOpen, closedByOther, pausedEarly, refusalIgnored, sinceProbe>>

EndCall(w) == pc' = [pc EXCEPT ![w] = "idle"] /\ probing' = [probing EXCEPT ![w] = FALSE]
\* Recovered: a call is accepted. It ends the failures, unless the circuit is
\* open and it is no probe: the call may have begun before the failure.
Recovered(w) ==
  /\ pc[w] = "calling" /\ ProviderWorks /\ EndCall(w) /\ gapBefore' = [gapBefore EXCEPT ![w] = 0]
  /\ \E closes \in {~open \/ token = w \/ ~OnlyProbeCloses} :
       /\ open' = (open /\ ~closes) /\ backOff' = (IF closes THEN 0 ELSE backOff) /\ probes' = (IF closes THEN 0 ELSE probes)
       /\ token' = (IF closes THEN NoToken ELSE token) /\ probeLeft' = (IF closes THEN 0 ELSE probeLeft)
       /\ openFor' = (IF closes THEN 0 ELSE openFor)
       /\ firstError' = (IF closes THEN "none" ELSE firstError) /\ realCause' = (IF closes THEN "none" ELSE realCause)
       /\ outageTicks' = (IF closes THEN 0 ELSE outageTicks)
       /\ closedByOther' = (closedByOther \/ (open /\ closes /\ ~probing[w]))
  /\ UNCHANGED <<provider, due, sinceFailure, paused, crashes, calledWhileOpen, twoProbes, sinceProbe, probedEarly, pausedEarly,
                 refusalIgnored>>
\* Failed: a call meets the failure of the provider (the meter's fail and
\* pauseFor).
Failed(w, what) ==
  /\ pc[w] = "calling" /\ ~ProviderWorks /\ EndCall(w) /\ gapBefore' = [v \in Workers |-> 0] /\ sinceFailure' = 0
  /\ \E idle \in {Minus(gapBefore[w], MaxGap)} :
     \E forgotten \in {Minus(gapBefore[w], MaxGap) > ForgetAfter} : \E isProbe \in {open /\ token = w} :
     \E old \in {IF forgotten /\ ForgetsOld THEN 0 ELSE IF IdleTimeIsNoOutage THEN Minus(openFor, idle) ELSE openFor} :
     \E n \in {IF forgotten /\ ForgetsOld THEN 0 ELSE probes} : \E pauses \in {open /\ (old >= PauseAfter \/ ~WaitsForOutage)} :
       /\ open' = TRUE /\ openFor' = (IF open THEN old ELSE 0) /\ sinceProbe' = (IF isProbe \/ ~open THEN 0 ELSE sinceProbe)
       /\ firstError' = (IF ~open \/ (forgotten /\ ForgetsOld) \/ ~KeepsFirst THEN what ELSE firstError)
       /\ realCause' = (IF ~open \/ forgotten THEN what ELSE realCause) /\ outageTicks' = (IF ~open \/ forgotten THEN 0 ELSE outageTicks)
       /\ probes' = (IF isProbe THEN 1 ELSE n)
       /\ backOff' = (IF ~BacksOff THEN 0 ELSE IF ~open THEN FirstBackOff ELSE IF isProbe THEN BackOff(n + 1) ELSE backOff)
       /\ token' = (IF isProbe THEN NoToken ELSE token) /\ probeLeft' = (IF isProbe THEN 0 ELSE probeLeft)
       /\ paused' = (IF provider = "refusing" /\ RefusalPauses THEN "refused" ELSE IF pauses THEN "errors" ELSE paused)
       /\ pausedEarly' = (pausedEarly \/ (pauses /\ (outageTicks < PauseAfter \/ forgotten)))
       /\ refusalIgnored' = (refusalIgnored \/ (provider = "refusing" /\ paused' = "no"))
  /\ UNCHANGED <<provider, due, crashes, calledWhileOpen, twoProbes, probedEarly, closedByOther>>
\* EndProbe: a probe ends without a result, and another may begin.
EndProbe(w) ==
  /\ pc[w] = "calling" /\ probing[w] /\ EndCall(w) /\ gapBefore' = [gapBefore EXCEPT ![w] = 0]
  /\ \E isProbe \in {token = w} :
       /\ token' = (IF isProbe THEN NoToken ELSE token) /\ probeLeft' = (IF isProbe THEN 0 ELSE probeLeft)
       /\ backOff' = (IF isProbe THEN FirstBackOff ELSE backOff)
  /\ crashes > 0 /\ crashes' = crashes - 1
  /\ UNCHANGED <<provider, due, open, probes, openFor, sinceFailure, firstError, paused, outageTicks, realCause, calledWhileOpen,
                 twoProbes, sinceProbe, probedEarly, closedByOther, pausedEarly, refusalIgnored>>
\* Crash: a caller or prober crashes.
Crash(w) ==
  /\ pc[w] = "calling" /\ crashes > 0 /\ crashes' = crashes - 1 /\ EndCall(w) /\ gapBefore' = [gapBefore EXCEPT ![w] = 0]
  /\ UNCHANGED <<provider, due, open, backOff, probes, token, probeLeft, openFor, sinceFailure, firstError, paused, outageTicks,
                 realCause, calledWhileOpen, twoProbes, sinceProbe, probedEarly, closedByOther, pausedEarly, refusalIgnored>>
\* Resume: a user resumes what was paused.
Resume ==
  /\ paused # "no" /\ paused' = "no"
  /\ UNCHANGED <<provider, due, open, backOff, probes, token, probeLeft, openFor, sinceFailure, firstError, pc, probing, gapBefore,
                 crashes, outageTicks, realCause, calledWhileOpen, twoProbes, sinceProbe, probedEarly, closedByOther, pausedEarly,
                 refusalIgnored>>

Next ==
  \/ Tick
  \/ ChangeProvider
  \/ \E w \in Workers : Claim(w)
  \/ \E w \in Workers : Probe(w)
  \/ \E w \in Workers : Recovered(w)
  \/ \E w \in Workers : Failed(w, "a")
  \/ \E w \in Workers : Failed(w, "b")
  \/ \E w \in Workers : EndProbe(w)
  \/ \E w \in Workers : Crash(w)
  \/ Resume

\* Time passes, and work that is due is claimed and answered.
Fairness ==
  /\ WF_vars(Tick) /\ WF_vars(\E w \in Workers : Claim(w)) /\ WF_vars(\E w \in Workers : Probe(w))
  /\ \A w \in Workers : WF_vars(Recovered(w)) /\ WF_vars(Failed(w, "a"))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state: only an open circuit is probed.
TypeOK == /\ open \/ (token = NoToken /\ backOff = 0 /\ openFor = 0)
          /\ openFor <= PauseAfter + ForgetAfter /\ probes \in {0, 1}
\* While the circuit is open, only probes call.
OnlyProbesCall == ~calledWhileOpen
\* One probe runs at a time, unless its lease has expired.
OneProbe == ~twoProbes
\* No probe begins before its back-off is over.
ProbesAreApart == ~probedEarly
\* Only a probe closes an open circuit.
OnlyAProbeCloses == ~closedByOther
\* first_error is the error of the first failed call of this outage.
FirstCause == open => firstError = realCause
\* Failures pause only after a long outage, without its idle time.
PauseMeansOutage == ~pausedEarly
\* A definite refusal pauses.
RefusalPausesAtOnce == ~refusalIgnored
\* When the provider has recovered and there is work, the circuit closes by
\* itself.
ClosesByItself == (provider = "up_for_good") ~> (~open \/ paused # "no")
\* When the provider is down for good and there is work, what needs it is
\* paused.
OutagePauses == (provider = "down_for_good") ~> (paused # "no")

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverClosedAgain == ~(provider = "up_for_good" /\ ~open /\ sinceFailure > 0 /\ sinceFailure <= MaxGap)
NeverPausedForErrors == paused # "errors"
NeverReplaced == ~\E w, v \in Workers : w # v /\ token = w /\ probing[v] /\ pc[v] = "calling"
NeverForgotten == ~(open /\ firstError = "b" /\ realCause = "b" /\ probes = 1 /\ openFor = 0)
NeverIdle == ~(open /\ Idle)
=============================================================================
