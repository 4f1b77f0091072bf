----------------------------- MODULE WaitResume ------------------------------
\* An enrollment that waits, and a wake-up that comes early, late, twice or
\* never.
\*
\* Workers read a shard only if its bound (flow_shards.next_due_at) has passed.
\*
\* Modelled: two waits one after the other. The first is for a webhook's
\* answer, which ends it at any time or never; the second is a delay. Timers
\* (which may fire at any time and repeatedly, or be lost), the waker that
\* finds what is due, two workers whose reads become outdated, an admin that
\* exits the enrollment, publishes a version in which the first node is a
\* delay, or publishes one in which the wait is checked again, the
\* database's clock, and a worker's own clock that jumps. The bound of the shard:
\* a transaction that makes the enrollment due lowers it and commits in two
\* steps, between which the bound may be raised.
\*
\* Left out, and why that is sound:
\* - The steps after the wait: Advance of FlowEngine.tla, in the same
\*   transaction.
\* - Waits for events: EventWait.tla. Recording one lowers the bound like Answer.
\* - Other enrollments of the shard: the bound is at most the smallest of theirs.
\* - The bound of a flow that does not advance: null. Resuming sets it to 0, where
\*   it is in Init.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers, \* workers that resume enrollments
  Horizon  \* the database's clock runs from 0 to this

CONSTANTS       \* Guards. TRUE in the design; each is FALSE in its own mutant
  ConsumesStep, \* the resumption is a compare-and-set on the step number
  ChecksDue,    \* it needs resume_at to have passed
  UsesDbClock,  \* ... by the database's clock
  Polls,        \* the waker finds what is due without a timer
  OneWaitEach,  \* a resumption ends one wait and begins the next
  AnswerOfStep, \* an answer ends only the wait of the step that sent the message
  AnswerIsCas,  \* it consumes answer_step, which a worker's move compares
  LowersBound,  \* what makes an enrollment due earlier lowers the bound of its shard
  LocksBound,   \* the bound is not raised between that and the commit
  RaiseReads    \* the bound is raised by what the statement that raises it reads

VARIABLES
  now,             \* the database's clock
  skew,            \* how far a worker's clock is ahead of it
  step,            \* enrollments.step: 1 and 2 wait, 3 is the end, 0 is exited
  resumeAt,        \* enrollments.resume_at
  answerStep,      \* enrollments.answer_step: the step whose answer is awaited, 0: none
  answered,        \* the message of step 1 has been answered
  timers,          \* steps with a timer
  bound,           \* flow_shards.next_due_at: before it no worker reads the shard
  writing,         \* a transaction has checked the bound and will make the enrollment due
  pc,              \* worker -> idle, read
  seen,            \* worker -> the step, answer_step and answer that it has read
  resumed,         \* step -> how often it was resumed
  moved,           \* history: the admin has moved the enrollment past the first wait
  resumedEarly,    \* history: a step was resumed before it was due
  endedOtherWait,  \* history: an answer has ended a wait that was not for it
  resumedAfterExit \* history: a step was resumed after the exit

shard == <<bound, writing>>
vars == <<now, skew, step, resumeAt, answerStep, answered, timers, shard, pc, seen, resumed, moved, resumedEarly, endedOtherWait,
          resumedAfterExit>>

Far == Horizon + 1   \* an answer may take longer than the model runs
NothingSeen == [step |-> 0, answerStep |-> 0, answered |-> FALSE]
Init ==
  /\ now = 0 /\ skew = 0 /\ step = 1 /\ resumeAt = Far /\ answerStep = 1 /\ answered = FALSE /\ timers = {1}
  /\ bound = 0 /\ writing = FALSE
  /\ pc = [w \in Workers |-> "idle"] /\ seen = [w \in Workers |-> NothingSeen]
  /\ resumed = [k \in {1, 2} |-> 0] /\ moved = FALSE /\ resumedEarly = FALSE /\ endedOtherWait = FALSE /\ resumedAfterExit = FALSE

\* Tick: time passes.
Tick == now < Horizon /\ now' = now + 1 /\ UNCHANGED <<shard, skew, step, resumeAt, answerStep, answered, timers, pc, seen, resumed, moved,
                                                       resumedEarly, endedOtherWait, resumedAfterExit>>
\* JumpClock: a worker's clock becomes wrong.
JumpClock == skew = 0 /\ skew' = 2 /\ UNCHANGED <<shard, now, step, resumeAt, answerStep, answered, timers, pc, seen, resumed, moved,
                                                  resumedEarly, endedOtherWait, resumedAfterExit>>
\* A worker reads the enrollment and, outside the transaction that moves it,
\* the answer of the endpoint.
ReadBy(w, k) ==
  /\ pc' = [pc EXCEPT ![w] = "read"]
  /\ seen' = [seen EXCEPT ![w] = [step |-> k, answerStep |-> IF k = step THEN answerStep ELSE 0, answered |-> answered]]
\* FireTimer: a timer fires, at any time, and perhaps again later.
FireTimer(w, k) ==
  /\ pc[w] = "idle" /\ k \in timers /\ ReadBy(w, k)
  /\ UNCHANGED <<shard, now, skew, step, resumeAt, answerStep, answered, timers, resumed, moved, resumedEarly, endedOtherWait, resumedAfterExit>>
\* LoseTimer: a timer is lost.
LoseTimer(k) == k \in timers /\ timers' = timers \ {k} /\ UNCHANGED <<shard, now, skew, step, resumeAt, answerStep, answered, pc, seen,
                                                                      resumed, moved, resumedEarly, endedOtherWait, resumedAfterExit>>
\* Wake: the waker finds what is due.
Wake(w) ==
  /\ Polls /\ pc[w] = "idle" /\ step \in {1, 2} /\ bound <= now /\ resumeAt <= now /\ ReadBy(w, step)
  /\ UNCHANGED <<shard, now, skew, step, resumeAt, answerStep, answered, timers, resumed, moved, resumedEarly, endedOtherWait, resumedAfterExit>>

\* The conditions of a worker's move.
StillDue(w) ==
  /\ (step = seen[w].step \/ ~ConsumesStep)
  /\ (answerStep = seen[w].answerStep \/ ~AnswerIsCas \/ ~ConsumesStep)
  /\ (~ChecksDue \/ resumeAt <= (IF UsesDbClock THEN now ELSE now + skew))
\* Resume: one statement, with the step that was read and the time as
\* conditions. A wait without its answer continues.
Resume(w) ==
  /\ pc[w] = "read" /\ pc' = [pc EXCEPT ![w] = "idle"] /\ seen' = [seen EXCEPT ![w] = NothingSeen]
  /\ \E k \in {seen[w].step} :
       \/ /\ StillDue(w) /\ (k = 2 \/ seen[w].answered)
          /\ resumed' = [resumed EXCEPT ![k] = @ + 1]
          /\ resumedEarly' = (resumedEarly \/ now < resumeAt) /\ resumedAfterExit' = (resumedAfterExit \/ step = 0)
          /\ step' = (IF OneWaitEach THEN k + 1 ELSE 3)
          /\ resumeAt' = (IF k = 1 THEN now + 1 ELSE Far) /\ answerStep' = 0
          /\ timers' = (IF k = 1 THEN timers \union {2} ELSE timers)
       \/ /\ StillDue(w) /\ k = 1 /\ ~seen[w].answered
          /\ resumeAt' = Far
          /\ UNCHANGED <<step, answerStep, timers, resumed, resumedEarly, resumedAfterExit>>
       \/ ~StillDue(w) /\ UNCHANGED <<step, resumeAt, answerStep, timers, resumed, resumedEarly, resumedAfterExit>>
  /\ UNCHANGED <<shard, now, skew, answered, moved, endedOtherWait>>

\* LowerBound: a transaction that is about to commit Answer, Move or CheckAnswer
\* lowers the bound, unless it has passed.
LowerBound ==
  /\ ~writing /\ writing' = TRUE /\ bound' = (IF LowersBound /\ bound > now THEN 0 ELSE bound)
  /\ UNCHANGED <<now, skew, step, resumeAt, answerStep, answered, timers, pc, seen, resumed, moved, resumedEarly, endedOtherWait,
                 resumedAfterExit>>
\* RaiseBounds: the shard has nothing due, and the bound is raised to the time at
\* which it has.
RaiseBounds ==
  /\ (~writing \/ ~LocksBound) /\ bound <= now /\ (resumeAt > now \/ ~RaiseReads)
  /\ bound' = (IF RaiseReads THEN resumeAt ELSE Far)
  /\ UNCHANGED <<now, skew, step, resumeAt, answerStep, answered, timers, writing, pc, seen, resumed, moved, resumedEarly,
                 endedOtherWait, resumedAfterExit>>

\* Answer: the outbox settles the message of step 1, once, and wakes the
\* enrollment that waits for it.
Answer ==
  /\ writing /\ writing' = FALSE /\ ~answered /\ answered' = TRUE
  /\ \E wakes \in {(step = 1 /\ answerStep = 1) \/ (~AnswerOfStep /\ step \in {1, 2})} :
       \/ /\ wakes /\ resumeAt' = now /\ endedOtherWait' = (endedOtherWait \/ (step = 2 /\ now < resumeAt))
          /\ answerStep' = (IF AnswerIsCas THEN 0 ELSE answerStep)
       \/ ~wakes /\ UNCHANGED <<resumeAt, answerStep, endedOtherWait>>
  /\ UNCHANGED <<bound, now, skew, step, timers, pc, seen, resumed, moved, resumedEarly, resumedAfterExit>>
\* Move: the admin publishes a version in which the node is a delay.
Move ==
  /\ writing /\ writing' = FALSE /\ step = 1 /\ ~moved /\ moved' = TRUE
  /\ step' = 2 /\ answerStep' = 0 /\ resumeAt' = now + 1 /\ timers' = timers \union {2}
  /\ UNCHANGED <<bound, now, skew, answered, pc, seen, resumed, resumedEarly, endedOtherWait, resumedAfterExit>>
\* CheckAnswer: the admin publishes a version in which the node is unchanged; a
\* worker checks for the answer again.
CheckAnswer ==
  /\ writing /\ writing' = FALSE /\ step = 1 /\ resumeAt = Far /\ resumeAt' = now
  /\ UNCHANGED <<bound, now, skew, step, answerStep, answered, timers, pc, seen, resumed, moved, resumedEarly, endedOtherWait, resumedAfterExit>>
\* Exit: the admin ends the enrollment.
Exit ==
  /\ step \in {1, 2} /\ step' = 0 /\ answerStep' = 0
  /\ UNCHANGED <<shard, now, skew, resumeAt, answered, timers, pc, seen, resumed, moved, resumedEarly, endedOtherWait, resumedAfterExit>>

Next ==
  \/ Tick
  \/ JumpClock
  \/ \E w \in Workers : \E k \in {1, 2} : FireTimer(w, k)
  \/ \E k \in {1, 2} : LoseTimer(k)
  \/ \E w \in Workers : Wake(w)
  \/ \E w \in Workers : Resume(w)
  \/ LowerBound
  \/ RaiseBounds
  \/ Answer
  \/ Move
  \/ CheckAnswer
  \/ Exit
Fairness == WF_vars(Tick) /\ SF_vars(\E v \in Workers : Wake(v)) /\ \A w \in Workers : WF_vars(Resume(w))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == step \in 0..3 /\ now \in 0..Horizon /\ answerStep \in {0, 1} /\ bound \in 0..Far
\* A wait ends once.
ResumedOncePerStep == \A k \in {1, 2} : resumed[k] <= 1
\* No wait is skipped, except by a move of the admin.
NoWaitSkipped == step = 3 => ((resumed[1] = 1 \/ moved) /\ resumed[2] = 1)
\* No wait ends before its time, whatever a worker's clock shows.
NeverBeforeDue == ~resumedEarly
\* An enrollment that has ended is not resumed.
NoResumeAfterExit == ~resumedAfterExit
\* An answer ends its own wait, and no other.
AnswerEndsItsWait == ~endedOtherWait
\* A wait that is answered is due, and does not continue.
NoAnswerIsLost == (step = 1 /\ answered) => resumeAt <= now
\* Workers read the shard of an enrollment that is due.
DueIsRead == (step \in {1, 2} /\ resumeAt <= now) => bound <= now
\* A wait that is due is resumed, also if its timer is lost, or continues to
\* wait for an answer.
DueLeadsToResumed == \A k \in {1, 2} : (step = k /\ resumeAt <= now) ~> (step # k \/ resumeAt > now)

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverFiredEarly == ~\E w \in Workers : pc[w] = "read" /\ seen[w].step = step /\ now < resumeAt
NeverTwiceAtOnce == ~(\A w \in Workers : pc[w] = "read" /\ seen[w].step = 2 /\ step = 2)
NeverWokenWithoutTimer == ~(step = 3 /\ timers = {} /\ now < Horizon)
NeverExitedUnderWorker == ~(step = 0 /\ \E w \in Workers : pc[w] = "read")
NeverAnsweredUnderWorker == ~\E w \in Workers : pc[w] = "read" /\ seen[w].step = 1 /\ ~seen[w].answered /\ answered /\ step = 1
NeverAnsweredLate == ~(step = 2 /\ moved /\ answered)
=============================================================================
