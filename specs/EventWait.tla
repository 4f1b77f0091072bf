----------------------------- MODULE EventWait -------------------------------
\* Events that enrollments wait for, recorded at the same time as the trigger
\* that enrolls a profile and the worker that moves it.
\*
\* Modelled: one profile, one trigger that enrolls it into a flow, a flow of
\* two waits for the same event one after the other, transactions that record
\* events (one of which may be the goal that ends the enrollment), and the
\* worker that reaches the waits at any time. A transaction that records an
\* event begins, locks the profile, writes the event, finds the active
\* enrollment, locks it, decides and commits. Time is a clock that each
\* timestamp advances; the time of an event is trigger_events.received_at.
\*
\* Left out, and why that is sound:
\* - Several profiles: a lock, a key and a read concern one profile.
\* - Conditions on events: an event that is not accepted is like one of another
\*   name.
\* - A worker with an outdated read: FlowEngine.tla and WaitResume.tla.
\* - The last check when a wait times out: no event is missed without it
\*   either.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Events,  \* transactions that record the awaited event
  Goal,    \* of these, the one that ends the flow
  Timeout, \* of a wait
  Horizon  \* the end of the clock

CONSTANTS           \* Guards. TRUE in the design; each is FALSE in its own mutant
  ProfileLock,      \* a transaction that finds enrollments and one that enrolls exclude each other: lockProfiles
  TimeAfterLock,    \* the trigger's time is that after its profile is locked
  ChecksOnEntry,    \* a wait checks for the events that came before it was entered: FindMissedEvents
  DecidesUnderLock, \* the effect of an event is decided by what is read under the lock
  StampsUnderLock,  \* an event of an active enrollment has the time at which the enrollment was locked: orderEvents
  FixedWindow,      \* the time of a wait begins when it was reached, not when a worker came
  OneEventOneWait   \* the next wait is for events after the one that ended the wait before

VARIABLES
  clock,        \* the database's clock
  triggerPc,    \* the trigger: idle, begun, locked, done
  triggerTime,  \* the time of the trigger: when its transaction began, or when it had the lock
  node,         \* the enrollment: none, entry (before the first worker), w1, w2, completed, timed_out, goal
  waitingSince, \* enrollments.waiting_since: events after it count; at the entry enrolled_at
  waitUntil,    \* the end of the wait
  matched,      \* enrollments.matched_event: here the time of the event that ended the wait; 0: none
  pc,           \* event -> idle, begun, written, found, locked, done
  receivedAt,   \* event -> trigger_events.received_at
  found,        \* event -> it has found the enrollment
  seenNode,     \* event -> the node of the enrollment when it was found
  endedBy,      \* history: wait -> the time of the event that ended it, 0: none yet
  enrolledAt    \* history: enrollments.enrolled_at

vars == <<clock, triggerPc, triggerTime, node, waitingSince, waitUntil, matched, pc, receivedAt, found, seenNode, endedBy, enrolledAt>>

Waits == {"w1", "w2"}
Active == node \in {"entry", "w1", "w2"}
EnrollmentUnlocked == \A e \in Events : pc[e] # "locked"
InProgress == {e \in Events : pc[e] \in {"written", "found", "locked"}}
Min(S) == CHOOSE x \in S : \A y \in S : x <= y

Init ==
  /\ clock = 1 /\ triggerPc = "idle" /\ triggerTime = 0 /\ node = "none" /\ waitingSince = 0 /\ waitUntil = 0 /\ matched = 0
  /\ pc = [e \in Events |-> "idle"] /\ receivedAt = [e \in Events |-> 0] /\ found = [e \in Events |-> FALSE]
  /\ seenNode = [e \in Events |-> "none"]
  /\ endedBy = [k \in Waits |-> 0] /\ enrolledAt = 0

\* Tick: time passes.
Tick ==
  /\ clock < Horizon /\ clock' = clock + 1
  /\ UNCHANGED <<triggerPc, triggerTime, node, waitingSince, waitUntil, matched, pc, receivedAt, found, seenNode, endedBy, enrolledAt>>

\* The trigger begins, locks the profile exclusively, and enrolls.
BeginTrigger ==
  /\ triggerPc = "idle" /\ clock < Horizon /\ triggerPc' = "begun" /\ triggerTime' = clock + 1 /\ clock' = clock + 1
  /\ UNCHANGED <<node, waitingSince, waitUntil, matched, pc, receivedAt, found, seenNode, endedBy, enrolledAt>>
LockForTrigger ==
  /\ triggerPc = "begun" /\ clock < Horizon
  /\ ProfileLock => InProgress = {}
  /\ triggerPc' = "locked" /\ clock' = clock + 1 /\ triggerTime' = IF TimeAfterLock THEN clock + 1 ELSE triggerTime
  /\ UNCHANGED <<node, waitingSince, waitUntil, matched, pc, receivedAt, found, seenNode, endedBy, enrolledAt>>
Enroll ==
  /\ triggerPc = "locked" /\ triggerPc' = "done" /\ node' = "entry" /\ waitingSince' = triggerTime /\ enrolledAt' = triggerTime
  /\ UNCHANGED <<clock, triggerTime, waitUntil, matched, pc, receivedAt, found, seenNode, endedBy>>

\* An event begins, locks the profile together with other events, and is
\* written.
BeginEvent(e) ==
  /\ pc[e] = "idle" /\ clock < Horizon /\ clock' = clock + 1
  /\ pc' = [pc EXCEPT ![e] = "begun"] /\ receivedAt' = [receivedAt EXCEPT ![e] = clock + 1]
  /\ UNCHANGED <<triggerPc, triggerTime, node, waitingSince, waitUntil, matched, found, seenNode, endedBy, enrolledAt>>
LockForEvent(e) ==
  /\ pc[e] = "begun" /\ (ProfileLock => triggerPc # "locked")
  /\ pc' = [pc EXCEPT ![e] = "written"]
  /\ UNCHANGED <<clock, triggerPc, triggerTime, node, waitingSince, waitUntil, matched, receivedAt, found, seenNode, endedBy, enrolledAt>>
\* FindEnrollment: it finds the active enrollment.
FindEnrollment(e) ==
  /\ pc[e] = "written" /\ pc' = [pc EXCEPT ![e] = "found"]
  /\ found' = [found EXCEPT ![e] = Active] /\ seenNode' = [seenNode EXCEPT ![e] = node]
  /\ UNCHANGED <<clock, triggerPc, triggerTime, node, waitingSince, waitUntil, matched, receivedAt, endedBy, enrolledAt>>
\* LockEnrollment: it locks the enrollment, and gets its place in the order of
\* events.
LockEnrollment(e) ==
  /\ pc[e] = "found" /\ found[e] /\ EnrollmentUnlocked /\ clock < Horizon /\ clock' = clock + 1
  /\ pc' = [pc EXCEPT ![e] = "locked"] /\ receivedAt' = [receivedAt EXCEPT ![e] = IF StampsUnderLock THEN clock + 1 ELSE @]
  /\ UNCHANGED <<triggerPc, triggerTime, node, waitingSince, waitUntil, matched, found, seenNode, endedBy, enrolledAt>>
\* Decide: it ends the enrollment, ends the wait, or has no effect, and
\* commits.
Decide(e) ==
  /\ pc[e] = "locked" \/ (pc[e] = "found" /\ ~found[e])
  /\ pc' = [pc EXCEPT ![e] = "done"]
  /\ \E now \in {IF DecidesUnderLock THEN node ELSE seenNode[e]} :
       \/ /\ found[e] /\ e \in Goal /\ Active /\ node' = "goal" /\ UNCHANGED matched
       \/ /\ found[e] /\ e \notin Goal /\ now \in Waits /\ node = now /\ matched = 0 /\ receivedAt[e] <= waitUntil
          /\ matched' = receivedAt[e] /\ UNCHANGED node
       \/ /\ ~(found[e] /\ e \in Goal /\ Active)
          /\ ~(found[e] /\ e \notin Goal /\ now \in Waits /\ node = now /\ matched = 0 /\ receivedAt[e] <= waitUntil)
          /\ UNCHANGED <<node, matched>>
  /\ UNCHANGED <<clock, triggerPc, triggerTime, waitingSince, waitUntil, receivedAt, found, seenNode, endedBy, enrolledAt>>

\* The committed events that a wait finds when it begins.
InTime(from, to) == {receivedAt[e] : e \in {x \in Events \ Goal : pc[x] = "done" /\ receivedAt[x] > from /\ receivedAt[x] <= to}}
FindMissed(from, to) == IF ChecksOnEntry /\ InTime(from, to) # {} THEN Min(InTime(from, to)) ELSE 0
WaitEnd(reached) == (IF FixedWindow THEN reached ELSE clock) + Timeout

\* Enter: the worker reaches the first wait.
Enter ==
  /\ node = "entry" /\ EnrollmentUnlocked /\ node' = "w1"
  /\ waitUntil' = WaitEnd(waitingSince) /\ matched' = FindMissed(waitingSince, WaitEnd(waitingSince))
  /\ UNCHANGED <<clock, triggerPc, triggerTime, waitingSince, pc, receivedAt, found, seenNode, endedBy, enrolledAt>>
\* Advance: the event has ended a wait, and the next one begins at its time.
Advance ==
  /\ node \in Waits /\ matched # 0 /\ EnrollmentUnlocked /\ endedBy' = [endedBy EXCEPT ![node] = matched]
  /\ \E from \in {IF OneEventOneWait THEN matched ELSE enrolledAt} :
       \/ /\ node = "w1" /\ node' = "w2" /\ waitingSince' = from /\ waitUntil' = WaitEnd(matched)
          /\ matched' = FindMissed(from, WaitEnd(matched))
       \/ /\ node = "w2" /\ node' = "completed" /\ UNCHANGED <<waitingSince, waitUntil, matched>>
  /\ UNCHANGED <<clock, triggerPc, triggerTime, pc, receivedAt, found, seenNode, enrolledAt>>
\* TimeOut: the time of a wait is over without an event.
TimeOut ==
  /\ node \in Waits /\ matched = 0 /\ clock > waitUntil /\ EnrollmentUnlocked /\ node' = "timed_out"
  /\ UNCHANGED <<clock, triggerPc, triggerTime, waitingSince, waitUntil, matched, pc, receivedAt, found, seenNode, endedBy, enrolledAt>>

Next ==
  \/ Tick
  \/ BeginTrigger
  \/ LockForTrigger
  \/ Enroll
  \/ \E e \in Events : BeginEvent(e)
  \/ \E e \in Events : LockForEvent(e)
  \/ \E e \in Events : FindEnrollment(e)
  \/ \E e \in Events : LockEnrollment(e)
  \/ \E e \in Events : Decide(e)
  \/ Enter
  \/ Advance
  \/ TimeOut
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == /\ clock \in 1..Horizon /\ node \in {"none", "entry", "w1", "w2", "completed", "timed_out", "goal"}
\* An event within the time of a wait ends it: no recorded event is missed.
EveryEventIsMatched == (node \in Waits /\ matched = 0) => InTime(waitingSince, waitUntil) = {}
\* The goal ends every enrollment that began before it.
GoalEndsEnrollment == \A e \in Goal : (pc[e] = "done" /\ Active) => receivedAt[e] <= enrolledAt
\* No event after the time of a wait ends it, however late a worker comes.
NoLateEventIsMatched ==
  /\ endedBy["w1"] <= enrolledAt + Timeout
  /\ (endedBy["w2"] # 0) => endedBy["w2"] <= endedBy["w1"] + Timeout
\* An event ends one wait, and waits end in the order of their events.
EventsInSequence == (endedBy["w2"] # 0) => endedBy["w2"] > endedBy["w1"]

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverBothMatched == ~(node = "completed")
NeverEventAfterTimeout == ~(node = "timed_out" /\ \E e \in Events : pc[e] = "done" /\ receivedAt[e] > waitUntil)
NeverBeforeTrigger == ~(\E e \in Events : pc[e] = "done" /\ ~found[e] /\ Active)
NeverEnteredUnderEvent == ~(\E e \in Events : pc[e] = "found" /\ seenNode[e] = "entry" /\ node = "w1")
=============================================================================
