----------------------------- MODULE FlowEngine ------------------------------
\* Journeys: enrollment, steps, and an admin who changes the flow under way.
\*
\* Modelled: one profile, two triggers (each a delivery that may come again and
\* again), two workers that read an enrollment and advance it later, and an admin
\* who publishes a version, moves people to it, exits them and archives the flow.
\* Version 1 is 1 -> 2 -> end, version 2 is 1 -> 3 -> end; the map of a move
\* sends who stands at 2 back to 1.
\*
\* Left out, and why that is sound:
\* - Several profiles: no key, index or statement joins two of them.
\* - Waits: WaitResume.tla. Branches and splits: they choose the next node, and
\*   any choice is a path like the ones here.
\* - What becomes of a notification: SendingEngine.tla.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Triggers,        \* deliveries that may enroll the profile
  Workers,         \* who advances
  SameKey,         \* TRUE: both triggers have the same uniqueness key (recurrence "once")
  Recurs,          \* TRUE: version 2 has the recurrence "once", whatever version 1 has
  Crashes          \* how many crashes there are

CONSTANTS          \* Guards. TRUE in the design; each is FALSE in its own mutant
  EnrollKey,       \* unique (flow, uniqueness key)
  OneActive,       \* unique (flow, profile) where active
  ActionKey,       \* unique (enrollment, node): the primary key of notifications
  AdvanceIsCas,    \* the enrollment moves only from the node and step that were read
  OneTx,           \* the action and the advance are one transaction
  ConflictGoesOn,  \* an action that is there already is a normal answer
  PinsVersion,     \* an enrollment follows the version that it is in
  PublishOnlyFlips,\* publishing changes nothing but the pointer
  MovesByMap,      \* a move puts people on a node of the new version
  MovesActiveOnly, \* a move or an exit finds those who are on the way, and nobody who has ended
  ArchivedRefuses, \* a trigger of an archived flow is refused
  HonoursEarlier,  \* a recurrence counts what was enrolled by another before
  ActsWhenItMoves  \* the transaction that moves an enrollment writes what its node does

VARIABLES
  version,  \* flows.version: what new enrollments follow
  archived, \* nobody enrolls any more
  enr,      \* trigger -> the enrollment that it made
  sends,    \* enrollment -> node -> notifications
  pc,       \* worker -> idle, read, acted
  on,       \* worker -> what it has read
  crashes,  \* crashes left
  home,     \* history: enrollment -> the version that enrolling or a move put it in
  moves,    \* history: enrollment -> how often it was advanced or moved
  ghost,    \* history: an action was taken for somebody who was not there any more
  late,     \* history: somebody enrolled after the archive
  again,    \* history: somebody enrolled by the recurrence "once" who had enrolled before
  final     \* history: enrollment -> as it was when it ended

vars == <<version, archived, enr, sends, pc, on, crashes, home, moves, ghost, late, again, final>>

Nodes(v) == IF v = 1 THEN {1, 2} ELSE {1, 3}
End == 9
After(v, node) == IF node = 1 THEN (IF v = 1 THEN 2 ELSE 3) ELSE End
Nobody == [st |-> "none", ver |-> 0, node |-> 0, step |-> 0]
Nothing == [t |-> "none", node |-> 0, step |-> 0]
Graph(t) == IF PinsVersion THEN enr[t].ver ELSE version
Active(t) == enr[t].st = "active"
Once == Recurs /\ version = 2

Init ==
  /\ version = 1 /\ archived = FALSE /\ enr = [t \in Triggers |-> Nobody]
  /\ sends = [t \in Triggers |-> [k \in {1, 2, 3} |-> 0]]
  /\ pc = [w \in Workers |-> "idle"] /\ on = [w \in Workers |-> Nothing] /\ crashes = Crashes
  /\ home = [t \in Triggers |-> 0] /\ moves = [t \in Triggers |-> 0] /\ ghost = FALSE
  /\ late = FALSE /\ again = FALSE /\ final = [t \in Triggers |-> Nobody]

\* Enroll: a trigger enrolls the profile; a conflict is a refusal, recorded with its reason.
Enroll(t) ==
  /\ ArchivedRefuses => ~archived
  /\ enr[t].st = "none"
  /\ EnrollKey => ~(SameKey /\ \E u \in Triggers : enr[u].st # "none")
  /\ (HonoursEarlier /\ Once) => ~\E u \in Triggers : enr[u].st # "none"
  /\ OneActive => ~\E u \in Triggers : Active(u)
  /\ enr' = [enr EXCEPT ![t] = [st |-> "active", ver |-> version, node |-> 1, step |-> 0]]
  /\ home' = [home EXCEPT ![t] = version] /\ late' = (late \/ archived)
  /\ again' = (again \/ (Once /\ \E u \in Triggers : enr[u].st # "none"))
  /\ UNCHANGED <<version, archived, sends, pc, on, crashes, moves, ghost, final>>

\* Read: a worker takes an enrollment that is due. Its knowledge grows old from here on.
Read(w, t) ==
  /\ pc[w] = "idle" /\ Active(t) /\ enr[t].node \in Nodes(Graph(t))
  /\ pc' = [pc EXCEPT ![w] = "read"] /\ on' = [on EXCEPT ![w] = [t |-> t, node |-> enr[t].node, step |-> enr[t].step]]
  /\ UNCHANGED <<version, archived, enr, sends, crashes, home, moves, ghost, late, again, final>>

Same(w, t) == Active(t) /\ enr[t].node = on[w].node /\ enr[t].step = on[w].step
\* The action of the node on which the worker saw the enrollment.
Act(w, t) ==
  /\ sends' = IF ~ActsWhenItMoves \/ (ActionKey /\ sends[t][on[w].node] > 0) THEN sends ELSE [sends EXCEPT ![t][on[w].node] = @ + 1]
  /\ ghost' = (ghost \/ (~Active(t) /\ ~(ActionKey /\ sends[t][on[w].node] > 0)))
\* The move to the next node.
Step(w, t) ==
  /\ enr' = [enr EXCEPT ![t] = [@ EXCEPT !.node = After(Graph(t), on[w].node), !.step = on[w].step + 1,
                                        !.st = IF After(Graph(t), on[w].node) = End THEN "done" ELSE @]]
  /\ moves' = [moves EXCEPT ![t] = @ + 1]
  /\ final' = IF enr'[t].st = "done" THEN [final EXCEPT ![t] = enr'[t]] ELSE final
Idle(w) == pc' = [pc EXCEPT ![w] = "idle"] /\ on' = [on EXCEPT ![w] = Nothing]

\* Advance: one transaction writes the notification and moves the enrollment by
\* compare-and-set. Somebody who is not there any more is passed over.
Advance(w) ==
  /\ OneTx /\ pc[w] = "read" /\ Idle(w)
  /\ \E t \in {on[w].t} :
       \/ /\ Same(w, t) \/ (~AdvanceIsCas /\ Active(t))
          /\ ConflictGoesOn \/ sends[t][on[w].node] = 0
          /\ Act(w, t) /\ Step(w, t)
       \/ /\ ~Same(w, t) /\ (AdvanceIsCas \/ ~Active(t))
          /\ UNCHANGED <<enr, sends, moves, ghost, final>>
       \/ \* A conflict that is an error undoes the transaction; it is tried again for ever.
          /\ Same(w, t) /\ ~ConflictGoesOn /\ sends[t][on[w].node] > 0
          /\ UNCHANGED <<enr, sends, moves, ghost, final>>
  /\ UNCHANGED <<version, archived, crashes, home, late, again>>
\* The same in two transactions (mutant OneTx only).
ActAlone(w) ==
  /\ ~OneTx /\ pc[w] = "read" /\ \E t \in {on[w].t} : Act(w, t)
  /\ pc' = [pc EXCEPT ![w] = "acted"]
  /\ UNCHANGED <<version, archived, enr, on, crashes, home, moves, late, again, final>>
StepAlone(w) ==
  /\ pc[w] = "acted" /\ Idle(w)
  /\ \E t \in {on[w].t} : \/ Same(w, t) /\ Step(w, t)
                          \/ ~Same(w, t) /\ UNCHANGED <<enr, moves, final>>
  /\ UNCHANGED <<version, archived, sends, crashes, home, ghost, late, again>>
Crash(w) ==
  /\ pc[w] # "idle" /\ crashes > 0 /\ crashes' = crashes - 1 /\ Idle(w)
  /\ UNCHANGED <<version, archived, enr, sends, home, moves, ghost, late, again, final>>

\* Publish flips the pointer: it enrolls nobody and moves nobody.
Publish ==
  /\ version = 1 /\ version' = 2
  /\ enr' = IF PublishOnlyFlips THEN enr ELSE [t \in Triggers |-> IF Active(t) THEN [enr[t] EXCEPT !.ver = 2] ELSE enr[t]]
  /\ UNCHANGED <<archived, sends, pc, on, crashes, home, moves, ghost, late, again, final>>
\* Move: the admin moves somebody who is on the way, by the node map.
Move(t) ==
  /\ version = 2 /\ (Active(t) \/ (~MovesActiveOnly /\ enr[t].st # "none")) /\ enr[t].ver = 1
  /\ enr' = [enr EXCEPT ![t] = [@ EXCEPT !.ver = 2, !.node = IF MovesByMap THEN 1 ELSE @, !.step = @ + 1]]
  /\ home' = [home EXCEPT ![t] = 2] /\ moves' = [moves EXCEPT ![t] = @ + 1]
  /\ UNCHANGED <<version, archived, sends, pc, on, crashes, ghost, late, again, final>>
\* Exit: the admin ends a journey.
Exit(t) ==
  /\ Active(t) /\ enr' = [enr EXCEPT ![t] = [@ EXCEPT !.st = "exited"]]
  /\ final' = [final EXCEPT ![t] = enr'[t]]
  /\ UNCHANGED <<version, archived, sends, pc, on, crashes, home, moves, ghost, late, again>>
\* Archive: nobody enrolls any more; who is on the way goes on.
Archive ==
  /\ ~archived /\ archived' = TRUE
  /\ UNCHANGED <<version, enr, sends, pc, on, crashes, home, moves, ghost, late, again, final>>

Next ==
  \/ \E t \in Triggers : Enroll(t)
  \/ \E w \in Workers : \E t \in Triggers : Read(w, t)
  \/ \E w \in Workers : Advance(w)
  \/ \E w \in Workers : ActAlone(w)
  \/ \E w \in Workers : StepAlone(w)
  \/ \E w \in Workers : Crash(w)
  \/ Publish
  \/ \E t \in Triggers : Move(t)
  \/ \E t \in Triggers : Exit(t)
  \/ Archive

Fairness ==
  /\ \A t \in Triggers : WF_vars(\E v \in Workers : Read(v, t))
  /\ \A w \in Workers : WF_vars(Advance(w)) /\ WF_vars(ActAlone(w)) /\ WF_vars(StepAlone(w))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == /\ version \in {1, 2} /\ \A t \in Triggers : enr[t].st \in {"none", "active", "done", "exited"}
\* One uniqueness key enrolls once, whatever became of that enrollment.
OneEnrollmentPerKey == SameKey => Cardinality({t \in Triggers : enr[t].st # "none"}) <= 1
\* A profile is on its way through a flow once at a time.
AtMostOneActiveEnrollment == Cardinality({t \in Triggers : Active(t)}) <= 1
\* A node acts at most once for an enrollment.
AtMostOneNotificationPerNode == \A t \in Triggers : \A k \in {1, 2, 3} : sends[t][k] <= 1
\* Every step is taken once: nobody is moved by old knowledge.
EachStepOnce == \A t \in Triggers : moves[t] = enr[t].step
\* Nothing is done for somebody who has left.
NoActionAfterExit == ~ghost
\* A version flip moves nobody.
FlipMovesNobody == \A t \in Triggers : enr[t].ver = home[t]
\* Who is on the way stands on a node that exists.
NobodyStranded == \A t \in Triggers : Active(t) => enr[t].node \in Nodes(Graph(t))
\* Nobody enrolls into an archived flow.
NobodyEnrollsAfterArchive == ~late
\* Another recurrence enrolls nobody again whom it takes for enrolled.
ARecurrenceHonoursEarlier == ~again
\* Who has ended stays as it ended.
EndedStaysEnded == \A t \in Triggers : enr[t].st \in {"done", "exited"} => enr[t] = final[t]
\* Nobody comes past a node that has not acted.
EveryNodeActs == \A t \in Triggers :
  /\ (enr[t].st # "none" /\ enr[t].node # 1) => sends[t][1] > 0
  /\ (enr[t].st = "done") => sends[t][IF enr[t].ver = 1 THEN 2 ELSE 3] > 0
\* Every journey ends.
EverybodyArrives == []<>(\A t \in Triggers : ~Active(t))

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverBothVersions == ~\E t, u \in Triggers : enr[t].ver = 1 /\ enr[u].ver = 2
NeverMovedBack == ~\E t \in Triggers : enr[t].ver = 2 /\ enr[t].node = 1 /\ sends[t][1] = 1
NeverStaleWorker == ~\E w \in Workers : pc[w] = "read" /\ \E t \in Triggers : on[w].t = t /\ enr[t].step > on[w].step
NeverExitedUnderWorker == ~\E w \in Workers : pc[w] = "read" /\ \E t \in Triggers : on[w].t = t /\ enr[t].st = "exited"
=============================================================================
