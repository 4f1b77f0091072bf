----------------------------- MODULE WaitResume ------------------------------
\* An enrollment that waits, and a wake-up that comes early, late, twice or never.
\*
\* Modelled: two waits one after the other. The first is for a webhook's answer,
\* which ends it at any time or never; the second is a delay. Timers (which may
\* fire at any time and again and again, or be lost), the waker that looks for
\* what is due, two workers whose knowledge grows old, an admin who exits the
\* enrollment, who publishes a version in which the first node is a delay, or who
\* has the answer asked for anew, the database's clock, and a worker's own clock
\* that jumps.
\*
\* Left out, and why that is sound:
\* - What the resumption does: FlowEngine.tla's Advance, in the same transaction.
\* - Waits for events: EventWait.tla.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers,      \* who resumes
  Horizon       \* the database's clock runs from 0 to here

CONSTANTS       \* Guards. TRUE in the design; each is FALSE in its own mutant
  ConsumesStep, \* the resumption is a compare-and-set on the step number
  ChecksDue,    \* it needs resume_at to have passed
  UsesDbClock,  \* by the database's clock
  Polls,        \* the waker finds what is due without a timer
  OneWaitEach,  \* a resumption ends one wait and begins the next
  AnswerOfStep, \* an answer wakes the wait of the step whose message it answers
  AnswerIsCas   \* it consumes answer_step, by which a worker's move is compared

VARIABLES
  now,      \* the database's clock
  skew,     \* how far a worker's clock is ahead of it
  step,     \* enrollments.step: 1 and 2 wait, 3 is the end, 0 has been exited
  due,      \* enrollments.resume_at
  asks,     \* enrollments.answer_step: the step whose answer the wait is for, 0: none
  answered, \* the message of step 1 has been answered
  timers,   \* steps for which a timer is set
  pc,       \* worker -> idle, read
  saw,      \* worker -> step, answer_step and answer that it saw
  resumed,  \* step -> how often it was resumed
  moved,    \* history: the admin has put the enrollment past the first wait
  early,    \* history: a step was resumed before it was due
  stolen,   \* history: an answer has ended a wait that was not for it
  ghost     \* history: a step was resumed after the exit

vars == <<now, skew, step, due, asks, answered, timers, pc, saw, resumed, moved, early, stolen, ghost>>

Far == Horizon + 1   \* an answer is waited for longer than the model goes
Nothing == [k |-> 0, asks |-> 0, answered |-> FALSE]
Init ==
  /\ now = 0 /\ skew = 0 /\ step = 1 /\ due = Far /\ asks = 1 /\ answered = FALSE /\ timers = {1}
  /\ pc = [w \in Workers |-> "idle"] /\ saw = [w \in Workers |-> Nothing]
  /\ resumed = [k \in {1, 2} |-> 0] /\ moved = FALSE /\ early = FALSE /\ stolen = FALSE /\ ghost = FALSE

\* Tick: time passes.
Tick == now < Horizon /\ now' = now + 1 /\ UNCHANGED <<skew, step, due, asks, answered, timers, pc, saw, resumed, moved, early, stolen, ghost>>
\* Jump: a worker's clock goes wrong.
Jump == skew = 0 /\ skew' = 2 /\ UNCHANGED <<now, step, due, asks, answered, timers, pc, saw, resumed, moved, early, stolen, ghost>>
\* A worker reads the enrollment and, outside of the transaction that moves it,
\* what the endpoint has answered.
Reads(w, k) == pc' = [pc EXCEPT ![w] = "read"] /\ saw' = [saw EXCEPT ![w] = [k |-> k, asks |-> IF k = step THEN asks ELSE 0, answered |-> answered]]
\* Fire: a timer fires, at whatever time, and perhaps not for the last time.
Fire(w, k) ==
  /\ pc[w] = "idle" /\ k \in timers /\ Reads(w, k)
  /\ UNCHANGED <<now, skew, step, due, asks, answered, timers, resumed, moved, early, stolen, ghost>>
\* Lose: a timer is gone.
Lose(k) == k \in timers /\ timers' = timers \ {k} /\ UNCHANGED <<now, skew, step, due, asks, answered, pc, saw, resumed, moved, early, stolen, ghost>>
\* Wake: the waker takes what is due.
Wake(w) ==
  /\ Polls /\ pc[w] = "idle" /\ step \in {1, 2} /\ due <= now /\ Reads(w, step)
  /\ UNCHANGED <<now, skew, step, due, asks, answered, timers, resumed, moved, early, stolen, ghost>>

\* What a worker's move is compared with.
Same(w) ==
  /\ (step = saw[w].k \/ ~ConsumesStep)
  /\ (asks = saw[w].asks \/ ~AnswerIsCas \/ ~ConsumesStep)
  /\ (~ChecksDue \/ due <= (IF UsesDbClock THEN now ELSE now + skew))
\* Resume: one statement, on the step that was seen and on the time. The wait for
\* an answer that is not there goes on.
Resume(w) ==
  /\ pc[w] = "read" /\ pc' = [pc EXCEPT ![w] = "idle"] /\ saw' = [saw EXCEPT ![w] = Nothing]
  /\ \E k \in {saw[w].k} :
       \/ /\ Same(w) /\ (k = 2 \/ saw[w].answered)
          /\ resumed' = [resumed EXCEPT ![k] = @ + 1]
          /\ early' = (early \/ now < due) /\ ghost' = (ghost \/ step = 0)
          /\ step' = (IF OneWaitEach THEN k + 1 ELSE 3)
          /\ due' = (IF k = 1 THEN now + 1 ELSE Far) /\ asks' = 0
          /\ timers' = (IF k = 1 THEN timers \union {2} ELSE timers)
       \/ /\ Same(w) /\ k = 1 /\ ~saw[w].answered
          /\ due' = Far
          /\ UNCHANGED <<step, asks, timers, resumed, early, ghost>>
       \/ ~Same(w) /\ UNCHANGED <<step, due, asks, timers, resumed, early, ghost>>
  /\ UNCHANGED <<now, skew, answered, moved, stolen>>

\* Answer: the outbox settles the message of step 1, once, and wakes who waits for it.
Answer ==
  /\ ~answered /\ answered' = TRUE
  /\ \E wakes \in {(step = 1 /\ asks = 1) \/ (~AnswerOfStep /\ step \in {1, 2})} :
       \/ /\ wakes /\ due' = now /\ stolen' = (stolen \/ (step = 2 /\ now < due))
          /\ asks' = (IF AnswerIsCas THEN 0 ELSE asks)
       \/ ~wakes /\ UNCHANGED <<due, asks, stolen>>
  /\ UNCHANGED <<now, skew, step, timers, pc, saw, resumed, moved, early, ghost>>
\* Move: the admin publishes a version in which the node is a delay.
Move ==
  /\ step = 1 /\ ~moved /\ moved' = TRUE
  /\ step' = 2 /\ asks' = 0 /\ due' = now + 1 /\ timers' = timers \union {2}
  /\ UNCHANGED <<now, skew, answered, pc, saw, resumed, early, stolen, ghost>>
\* AskAgain: the admin publishes a version in which the node is as it was; the
\* answer is asked for anew.
AskAgain ==
  /\ step = 1 /\ due = Far /\ due' = now
  /\ UNCHANGED <<now, skew, step, asks, answered, timers, pc, saw, resumed, moved, early, stolen, ghost>>
\* Exit: the admin ends the journey.
Exit ==
  /\ step \in {1, 2} /\ step' = 0 /\ asks' = 0
  /\ UNCHANGED <<now, skew, due, answered, timers, pc, saw, resumed, moved, early, stolen, ghost>>

Next ==
  \/ Tick
  \/ Jump
  \/ \E w \in Workers : \E k \in {1, 2} : Fire(w, k)
  \/ \E k \in {1, 2} : Lose(k)
  \/ \E w \in Workers : Wake(w)
  \/ \E w \in Workers : Resume(w)
  \/ Answer
  \/ Move
  \/ AskAgain
  \/ Exit
Fairness == WF_vars(Tick) /\ SF_vars(\E v \in Workers : Wake(v)) /\ \A w \in Workers : WF_vars(Resume(w))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == step \in 0..3 /\ now \in 0..Horizon /\ asks \in {0, 1}
\* A wait ends once.
ResumedOncePerStep == \A k \in {1, 2} : resumed[k] <= 1
\* No wait is passed over, but for the one that an admin has taken away.
NoWaitSkipped == step = 3 => ((resumed[1] = 1 \/ moved) /\ resumed[2] = 1)
\* No wait ends before its time, whatever a worker's clock says.
NeverBeforeDue == ~early
\* Who has left is not woken.
NoResumeAfterExit == ~ghost
\* An answer ends the wait for it, and no other.
AnswerEndsItsWait == ~stolen
\* A wait that is answered is due, and does not go on.
NoAnswerIsLost == (step = 1 /\ answered) => due <= now
\* What is due is resumed, also when its timer is lost; or goes on waiting for an answer.
DueLeadsToResumed == \A k \in {1, 2} : (step = k /\ due <= now) ~> (step # k \/ due > now)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverFiredEarly == ~\E w \in Workers : pc[w] = "read" /\ saw[w].k = step /\ now < due
NeverTwiceAtOnce == ~(\A w \in Workers : pc[w] = "read" /\ saw[w].k = 2 /\ step = 2)
NeverWokenWithoutTimer == ~(step = 3 /\ timers = {} /\ now < Horizon)
NeverExitedUnderWorker == ~(step = 0 /\ \E w \in Workers : pc[w] = "read")
NeverAnsweredUnderWorker == ~\E w \in Workers : pc[w] = "read" /\ saw[w].k = 1 /\ ~saw[w].answered /\ answered /\ step = 1
NeverAnsweredLate == ~(step = 2 /\ moved /\ answered)
=============================================================================
