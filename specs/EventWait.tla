----------------------------- MODULE EventWait -------------------------------
\* Events that people wait for, recorded beside the trigger that enrolls them and
\* beside the worker that moves them.
\*
\* Modelled: one profile, one trigger that enrolls it into a flow, a flow of two
\* waits for the same event one after the other, transactions that record events
\* (one of which may be the goal that ends the journey), and the worker that
\* comes to the waits whenever it likes. A transaction that records an event
\* begins, locks the profile, writes the event, looks for who is on the way, locks
\* whom it has found, and decides and commits. Time is a clock that each stamp
\* moves on; the time of an event is trigger_events.received_at.
\*
\* Left out, and why that is sound:
\* - Several profiles: a lock, a key and a look are one profile's.
\* - Conditions on events: one that is not accepted is as one of another name.
\* - A worker with old knowledge: FlowEngine.tla and WaitResume.tla.
\* - The last look when a wait times out: without it no event is missed either.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Events,          \* transactions that record the awaited event
  Goal,            \* of these: what the flow ends with
  Timeout,         \* of a wait
  Horizon          \* how far the clock goes

CONSTANTS          \* Guards. TRUE in the design; each is FALSE in its own mutant
  ProfileLock,     \* who looks for people and who enrolls one take turns: lockProfiles
  TimeAfterLock,   \* the trigger's time is that of after its profile is locked
  LooksOnEntry,    \* a wait looks for the events that came before it was seen: lookOnce
  DecidesLocked,   \* what an event means is decided by what is read under the lock
  StampsLocked,    \* an event of somebody on the way has the time at which he was locked: giveTurns
  FixedWindow,     \* a wait has its time from when it was reached, not from when a worker came
  OneEventOneWait  \* the next wait is for what comes after the event that ended the one before

VARIABLES
  clock,   \* the database's
  tpc,     \* the trigger: idle, begun, locked, done
  tbegun,  \* when its transaction began, and then its time
  st,      \* the enrollment: none, first (at its entry, no worker was there), w1, w2, end, late, goal
  since,   \* waiting_since: what came after counts; at the entry enrolled_at
  until,   \* when the wait is over
  heard,   \* the time of the event that ended it; 0: none
  pc,      \* event -> idle, begun, written, found, held, done
  at,      \* event -> received_at
  row,     \* event -> the enrollment was found
  sawst,   \* event -> where it stood when it was found
  ended,   \* history: wait -> the time of the event that ended it, 0: none yet
  enrolled \* history: enrolled_at

vars == <<clock, tpc, tbegun, st, since, until, heard, pc, at, row, sawst, ended, enrolled>>

Waits == {"w1", "w2"}
OnTheWay == st \in {"first", "w1", "w2"}
RowFree == \A e \in Events : pc[e] # "held"
Looking == {e \in Events : pc[e] \in {"written", "found", "held"}}
Min(S) == CHOOSE x \in S : \A y \in S : x <= y

Init ==
  /\ clock = 1 /\ tpc = "idle" /\ tbegun = 0 /\ st = "none" /\ since = 0 /\ until = 0 /\ heard = 0
  /\ pc = [e \in Events |-> "idle"] /\ at = [e \in Events |-> 0] /\ row = [e \in Events |-> FALSE] /\ sawst = [e \in Events |-> "none"]
  /\ ended = [k \in Waits |-> 0] /\ enrolled = 0

\* Tick: time passes.
Tick ==
  /\ clock < Horizon /\ clock' = clock + 1
  /\ UNCHANGED <<tpc, tbegun, st, since, until, heard, pc, at, row, sawst, ended, enrolled>>

\* The trigger begins, locks the profile for itself, and enrolls.
BeginTrigger ==
  /\ tpc = "idle" /\ clock < Horizon /\ tpc' = "begun" /\ tbegun' = clock + 1 /\ clock' = clock + 1
  /\ UNCHANGED <<st, since, until, heard, pc, at, row, sawst, ended, enrolled>>
LockForTrigger ==
  /\ tpc = "begun" /\ clock < Horizon
  /\ ProfileLock => Looking = {}
  /\ tpc' = "locked" /\ clock' = clock + 1 /\ tbegun' = IF TimeAfterLock THEN clock + 1 ELSE tbegun
  /\ UNCHANGED <<st, since, until, heard, pc, at, row, sawst, ended, enrolled>>
Enroll ==
  /\ tpc = "locked" /\ tpc' = "done" /\ st' = "first" /\ since' = tbegun /\ enrolled' = tbegun
  /\ UNCHANGED <<clock, tbegun, until, heard, pc, at, row, sawst, ended>>

\* An event begins, shares the profile with other events, and is written.
BeginEvent(e) ==
  /\ pc[e] = "idle" /\ clock < Horizon /\ clock' = clock + 1
  /\ pc' = [pc EXCEPT ![e] = "begun"] /\ at' = [at EXCEPT ![e] = clock + 1]
  /\ UNCHANGED <<tpc, tbegun, st, since, until, heard, row, sawst, ended, enrolled>>
LockForEvent(e) ==
  /\ pc[e] = "begun" /\ (ProfileLock => tpc # "locked")
  /\ pc' = [pc EXCEPT ![e] = "written"]
  /\ UNCHANGED <<clock, tpc, tbegun, st, since, until, heard, at, row, sawst, ended, enrolled>>
\* Find: it looks for who is on the way.
Find(e) ==
  /\ pc[e] = "written" /\ pc' = [pc EXCEPT ![e] = "found"]
  /\ row' = [row EXCEPT ![e] = OnTheWay] /\ sawst' = [sawst EXCEPT ![e] = st]
  /\ UNCHANGED <<clock, tpc, tbegun, st, since, until, heard, at, ended, enrolled>>
\* Hold: it locks whom it has found, and has its turn.
Hold(e) ==
  /\ pc[e] = "found" /\ row[e] /\ RowFree /\ clock < Horizon /\ clock' = clock + 1
  /\ pc' = [pc EXCEPT ![e] = "held"] /\ at' = [at EXCEPT ![e] = IF StampsLocked THEN clock + 1 ELSE @]
  /\ UNCHANGED <<tpc, tbegun, st, since, until, heard, row, sawst, ended, enrolled>>
\* Decide: it ends the journey, ends the wait, or does nothing; and commits.
Decide(e) ==
  /\ pc[e] = "held" \/ (pc[e] = "found" /\ ~row[e])
  /\ pc' = [pc EXCEPT ![e] = "done"]
  /\ \E now \in {IF DecidesLocked THEN st ELSE sawst[e]} :
       \/ /\ row[e] /\ e \in Goal /\ OnTheWay /\ st' = "goal" /\ UNCHANGED heard
       \/ /\ row[e] /\ e \notin Goal /\ now \in Waits /\ st = now /\ heard = 0 /\ at[e] <= until
          /\ heard' = at[e] /\ UNCHANGED st
       \/ /\ ~(row[e] /\ e \in Goal /\ OnTheWay)
          /\ ~(row[e] /\ e \notin Goal /\ now \in Waits /\ st = now /\ heard = 0 /\ at[e] <= until)
          /\ UNCHANGED <<st, heard>>
  /\ UNCHANGED <<clock, tpc, tbegun, since, until, at, row, sawst, ended, enrolled>>

\* What a wait that begins now finds of what has been committed.
InTime(from, to) == {at[e] : e \in {x \in Events \ Goal : pc[x] = "done" /\ at[x] > from /\ at[x] <= to}}
Looks(from, to) == IF LooksOnEntry /\ InTime(from, to) # {} THEN Min(InTime(from, to)) ELSE 0
Over(reached) == (IF FixedWindow THEN reached ELSE clock) + Timeout

\* Enter: the worker comes to the first wait.
Enter ==
  /\ st = "first" /\ RowFree /\ st' = "w1"
  /\ until' = Over(since) /\ heard' = Looks(since, Over(since))
  /\ UNCHANGED <<clock, tpc, tbegun, since, pc, at, row, sawst, ended, enrolled>>
\* GoOn: the event has ended a wait; the next one was reached when it came.
GoOn ==
  /\ st \in Waits /\ heard # 0 /\ RowFree /\ ended' = [ended EXCEPT ![st] = heard]
  /\ \E from \in {IF OneEventOneWait THEN heard ELSE enrolled} :
       \/ /\ st = "w1" /\ st' = "w2" /\ since' = from /\ until' = Over(heard) /\ heard' = Looks(from, Over(heard))
       \/ /\ st = "w2" /\ st' = "end" /\ UNCHANGED <<since, until, heard>>
  /\ UNCHANGED <<clock, tpc, tbegun, pc, at, row, sawst, enrolled>>
\* TimeOut: the time of a wait is over, and nothing was heard.
TimeOut ==
  /\ st \in Waits /\ heard = 0 /\ clock > until /\ RowFree /\ st' = "late"
  /\ UNCHANGED <<clock, tpc, tbegun, since, until, heard, pc, at, row, sawst, ended, enrolled>>

Next ==
  \/ Tick
  \/ BeginTrigger
  \/ LockForTrigger
  \/ Enroll
  \/ \E e \in Events : BeginEvent(e)
  \/ \E e \in Events : LockForEvent(e)
  \/ \E e \in Events : Find(e)
  \/ \E e \in Events : Hold(e)
  \/ \E e \in Events : Decide(e)
  \/ Enter
  \/ GoOn
  \/ TimeOut
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == /\ clock \in 1..Horizon /\ st \in {"none", "first", "w1", "w2", "end", "late", "goal"}
\* An event that came in the time of a wait ends it: there is none that is
\* written down, and passed over.
EveryEventIsHeard == (st \in Waits /\ heard = 0) => InTime(since, until) = {}
\* The goal ends the journey of everybody who was enrolled before it.
GoalEndsJourney == \A e \in Goal : (pc[e] = "done" /\ OnTheWay) => at[e] <= enrolled
\* Nothing that comes after the time of a wait ends it, however late a worker came.
NothingLateIsHeard ==
  /\ ended["w1"] <= enrolled + Timeout
  /\ (ended["w2"] # 0) => ended["w2"] <= ended["w1"] + Timeout
\* An event ends one wait, and the waits end in the order of their events.
EventsInSequence == (ended["w2"] # 0) => ended["w2"] > ended["w1"]

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverBoth == ~(st = "end")
NeverLate == ~(st = "late" /\ \E e \in Events : pc[e] = "done" /\ at[e] > until)
NeverBefore == ~(\E e \in Events : pc[e] = "done" /\ ~row[e] /\ OnTheWay)
NeverEnteredUnderEvent == ~(\E e \in Events : pc[e] = "found" /\ sawst[e] = "first" /\ st = "w1")
=============================================================================
