----------------------------- MODULE WaitResume ------------------------------
\* An enrollment that waits, and a wake-up that comes early, late, twice or never.
\*
\* Modelled: two waits one after the other, the timer of each (which may fire at
\* any time and again and again, or be lost), the waker that looks for what is
\* due, two workers whose knowledge grows old, an admin who exits the enrollment,
\* the database's clock, and a worker's own clock that jumps.
\*
\* Left out, and why that is sound: what the resumption does is FlowEngine.tla's
\* Advance; it is in the same transaction.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers,      \* who resumes
  Horizon       \* the database's clock runs from 0 to here

CONSTANTS       \* Guards. TRUE in the design; each is FALSE in its own mutant
  ConsumesStep, \* the resumption is a compare-and-set on the step number
  ChecksDue,    \* it needs resume_at to have passed
  UsesDbClock,  \* by the database's clock
  Polls         \* the waker finds what is due without a timer

VARIABLES
  now,      \* the database's clock
  skew,     \* how far a worker's clock is ahead of it
  step,     \* flow_enrollments.step: 1 and 2 wait, 3 is the end, 0 has been exited
  timers,   \* steps for which a timer is set
  pc,       \* worker -> idle, read
  saw,      \* worker -> the step that it saw
  resumed,  \* step -> how often it was resumed
  early,    \* history: a step was resumed before it was due
  ghost     \* history: a step was resumed after the exit

vars == <<now, skew, step, timers, pc, saw, resumed, early, ghost>>

Due(k) == IF k = 1 THEN 1 ELSE 3    \* resume_at of the two waits
Init ==
  /\ now = 0 /\ skew = 0 /\ step = 1 /\ timers = {1}
  /\ pc = [w \in Workers |-> "idle"] /\ saw = [w \in Workers |-> 0]
  /\ resumed = [k \in {1, 2} |-> 0] /\ early = FALSE /\ ghost = FALSE

\* Tick: time passes.
Tick == now < Horizon /\ now' = now + 1 /\ UNCHANGED <<skew, step, timers, pc, saw, resumed, early, ghost>>
\* Jump: a worker's clock goes wrong.
Jump == skew = 0 /\ skew' = 2 /\ UNCHANGED <<now, step, timers, pc, saw, resumed, early, ghost>>
\* Fire: a timer fires, at whatever time, and perhaps not for the last time.
Fire(w, k) ==
  /\ pc[w] = "idle" /\ k \in timers /\ pc' = [pc EXCEPT ![w] = "read"] /\ saw' = [saw EXCEPT ![w] = k]
  /\ UNCHANGED <<now, skew, step, timers, resumed, early, ghost>>
\* Lose: a timer is gone.
Lose(k) == k \in timers /\ timers' = timers \ {k} /\ UNCHANGED <<now, skew, step, pc, saw, resumed, early, ghost>>
\* Wake: the waker takes what is due.
Wake(w) ==
  /\ Polls /\ pc[w] = "idle" /\ step \in {1, 2} /\ Due(step) <= now
  /\ pc' = [pc EXCEPT ![w] = "read"] /\ saw' = [saw EXCEPT ![w] = step]
  /\ UNCHANGED <<now, skew, step, timers, resumed, early, ghost>>
\* Resume: one statement, on the step that was seen and on the time.
Resume(w) ==
  /\ pc[w] = "read" /\ pc' = [pc EXCEPT ![w] = "idle"] /\ saw' = [saw EXCEPT ![w] = 0]
  /\ \E k \in {saw[w]} : \E ok \in {/\ (step = k \/ ~ConsumesStep)
                                    /\ (~ChecksDue \/ Due(k) <= (IF UsesDbClock THEN now ELSE now + skew))} :
       \/ /\ ok
          /\ resumed' = [resumed EXCEPT ![k] = @ + 1]
          /\ early' = (early \/ now < Due(k)) /\ ghost' = (ghost \/ step = 0)
          /\ step' = k + 1 /\ timers' = IF k = 1 THEN timers \union {2} ELSE timers
       \/ ~ok /\ UNCHANGED <<step, timers, resumed, early, ghost>>
  /\ UNCHANGED <<now, skew>>
\* Exit: the admin ends the journey.
Exit == step \in {1, 2} /\ step' = 0 /\ UNCHANGED <<now, skew, timers, pc, saw, resumed, early, ghost>>

Next ==
  \/ Tick
  \/ Jump
  \/ \E w \in Workers : \E k \in {1, 2} : Fire(w, k)
  \/ \E k \in {1, 2} : Lose(k)
  \/ \E w \in Workers : Wake(w)
  \/ \E w \in Workers : Resume(w)
  \/ Exit
Fairness == WF_vars(Tick) /\ SF_vars(\E v \in Workers : Wake(v)) /\ \A w \in Workers : WF_vars(Resume(w))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == step \in 0..3 /\ now \in 0..Horizon
\* A wait ends once.
ResumedOncePerStep == \A k \in {1, 2} : resumed[k] <= 1
\* No wait ends before its time, whatever a worker's clock says.
NeverBeforeDue == ~early
\* Who has left is not woken.
NoResumeAfterExit == ~ghost
\* What is due is resumed, also when its timer is lost.
DueLeadsToResumed == \A k \in {1, 2} : (step = k /\ Due(k) <= now) ~> (step # k)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverFiredEarly == ~\E w \in Workers : pc[w] = "read" /\ saw[w] = step /\ now < Due(step)
NeverTwiceAtOnce == ~(\A w \in Workers : pc[w] = "read" /\ saw[w] = 1)
NeverWokenWithoutTimer == ~(step = 3 /\ timers = {} /\ now < Horizon)
NeverExitedUnderWorker == ~(step = 0 /\ \E w \in Workers : pc[w] = "read")
=============================================================================
