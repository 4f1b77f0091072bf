----------------------------- MODULE FlowEngine ------------------------------
\* Enrollments: how they begin, their steps, and an admin that changes the flow
\* meanwhile.
\*
\* Modelled: one profile, two triggers (each a delivery that may be repeated),
\* two workers that read an enrollment and advance it later, and an admin that
\* publishes a version, moves enrollments to it, exits them and archives the
\* flow. Version 1 is 1 -> 2 -> end, version 2 is 1 -> 3 -> end; the node map
\* of a move sends an enrollment at 2 back to 1.
\*
\* Left out, and why that is sound:
\* - Several profiles: no key, index or statement joins two of them.
\* - Waits: WaitResume.tla. Branches and splits: they choose the next node, and
\*   any choice is a path like the ones here.
\* - The outcome of a notification: SendingEngine.tla.
\* - The refusal of an enrollment at its entry, and the trigger behind it that is then
\*   offered again: the enrollment ends without an action and frees its key in one
\*   transaction, and the trigger enrolls by Enroll under the same keys.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Triggers, \* deliveries that may enroll the profile
  Workers,  \* workers that advance enrollments
  SameKey,  \* TRUE: both triggers have the same uniqueness key (recurrence "once")
  Recurs,   \* TRUE: version 2 has the recurrence "once", and version 1 another
  Crashes   \* how many crashes there are

CONSTANTS                 \* Guards. TRUE in the design; each is FALSE in its own mutant
  EnrollKey,              \* unique (flow, uniqueness key)
  OneActive,              \* unique (flow, profile) where active
  ActionKey,              \* unique (enrollment, node): the primary key of notifications
  AdvanceIsCas,           \* the enrollment moves only from the node and step that were read
  OneTx,                  \* the action and the advance are one transaction
  ConflictIsAnAnswer,     \* an action that exists already is a normal answer
  PinsVersion,            \* an enrollment follows its own version
  PublishOnlySetsVersion, \* publishing changes only flows.live_version
  MovesByMap,             \* a move puts enrollments on a node of the new version
  MovesActiveOnly,        \* a move or an exit finds only active enrollments
  ArchivedRefuses,        \* a trigger of an archived flow is refused
  CountsEarlier,          \* a recurrence counts the enrollments under earlier recurrences
  ActsWhenItMoves         \* the transaction that moves an enrollment writes the action of its node

VARIABLES
  liveVersion,    \* flows.live_version: the version of new enrollments
  archived,       \* the flow is archived: it enrolls no profile any more
  enrollment,     \* trigger -> the enrollment that it made
  sends,          \* enrollment -> node -> notifications
  pc,             \* worker -> idle, read, acted
  lastRead,       \* worker -> what it has read
  crashes,        \* crashes left
  placedIn,       \* history: enrollment -> the version that enrolling or a move gave it
  moves,          \* history: enrollment -> how often it was advanced or moved
  actedAfterExit, \* history: an action was taken for an enrollment that was not active any more
  enrolledLate,   \* history: a profile was enrolled after the archive
  enrolledAgain,  \* history: the recurrence "once" enrolled a profile that had been enrolled before
  endedAs         \* history: enrollment -> its row when it ended

vars == <<liveVersion, archived, enrollment, sends, pc, lastRead, crashes, placedIn, moves, actedAfterExit, enrolledLate, enrolledAgain,
          endedAs>>

Nodes(v) == IF v = 1 THEN {1, 2} ELSE {1, 3}
End == 9
NextNode(v, node) == IF node = 1 THEN (IF v = 1 THEN 2 ELSE 3) ELSE End
NoEnrollment == [status |-> "none", version |-> 0, node |-> 0, step |-> 0]
NothingSeen == [t |-> "none", node |-> 0, step |-> 0]
VersionOf(t) == IF PinsVersion THEN enrollment[t].version ELSE liveVersion
Active(t) == enrollment[t].status = "active"
OnceNow == Recurs /\ liveVersion = 2

Init ==
  /\ liveVersion = 1 /\ archived = FALSE /\ enrollment = [t \in Triggers |-> NoEnrollment]
  /\ sends = [t \in Triggers |-> [k \in {1, 2, 3} |-> 0]]
  /\ pc = [w \in Workers |-> "idle"] /\ lastRead = [w \in Workers |-> NothingSeen] /\ crashes = Crashes
  /\ placedIn = [t \in Triggers |-> 0] /\ moves = [t \in Triggers |-> 0] /\ actedAfterExit = FALSE
  /\ enrolledLate = FALSE /\ enrolledAgain = FALSE /\ endedAs = [t \in Triggers |-> NoEnrollment]

\* Enroll: a trigger enrolls the profile. A conflict is a refusal, recorded
\* with its reason.
Enroll(t) ==
  /\ ArchivedRefuses => ~archived
  /\ enrollment[t].status = "none"
  /\ EnrollKey => ~(SameKey /\ \E u \in Triggers : enrollment[u].status # "none")
  /\ (CountsEarlier /\ OnceNow) => ~\E u \in Triggers : enrollment[u].status # "none"
  /\ OneActive => ~\E u \in Triggers : Active(u)
  /\ enrollment' = [enrollment EXCEPT ![t] = [status |-> "active", version |-> liveVersion, node |-> 1, step |-> 0]]
  /\ placedIn' = [placedIn EXCEPT ![t] = liveVersion] /\ enrolledLate' = (enrolledLate \/ archived)
  /\ enrolledAgain' = (enrolledAgain \/ (OnceNow /\ \E u \in Triggers : enrollment[u].status # "none"))
  /\ UNCHANGED <<liveVersion, archived, sends, pc, lastRead, crashes, moves, actedAfterExit, endedAs>>

\* Read: a worker reads an enrollment that is due. From here on its knowledge
\* may be out of date.
Read(w, t) ==
  /\ pc[w] = "idle" /\ Active(t) /\ enrollment[t].node \in Nodes(VersionOf(t))
  /\ pc' = [pc EXCEPT ![w] = "read"]
  /\ lastRead' = [lastRead EXCEPT ![w] = [t |-> t, node |-> enrollment[t].node, step |-> enrollment[t].step]]
  /\ UNCHANGED <<liveVersion, archived, enrollment, sends, crashes, placedIn, moves, actedAfterExit, enrolledLate, enrolledAgain, endedAs>>

SameStep(w, t) == Active(t) /\ enrollment[t].node = lastRead[w].node /\ enrollment[t].step = lastRead[w].step
\* The action of the node at which the worker read the enrollment.
Act(w, t) ==
  /\ sends' = IF ~ActsWhenItMoves \/ (ActionKey /\ sends[t][lastRead[w].node] > 0) THEN sends
              ELSE [sends EXCEPT ![t][lastRead[w].node] = @ + 1]
  /\ actedAfterExit' = (actedAfterExit \/ (~Active(t) /\ ~(ActionKey /\ sends[t][lastRead[w].node] > 0)))
\* The move to the next node.
Step(w, t) ==
  /\ enrollment' = [enrollment EXCEPT ![t] = [@ EXCEPT !.node = NextNode(VersionOf(t), lastRead[w].node), !.step = lastRead[w].step + 1,
                                        !.status = IF NextNode(VersionOf(t), lastRead[w].node) = End THEN "completed" ELSE @]]
  /\ moves' = [moves EXCEPT ![t] = @ + 1]
  /\ endedAs' = IF enrollment'[t].status = "completed" THEN [endedAs EXCEPT ![t] = enrollment'[t]] ELSE endedAs
Idle(w) == pc' = [pc EXCEPT ![w] = "idle"] /\ lastRead' = [lastRead EXCEPT ![w] = NothingSeen]

\* Advance: one transaction writes the notification and moves the enrollment by
\* compare-and-set. An enrollment that has moved or ended is left alone.
Advance(w) ==
  /\ OneTx /\ pc[w] = "read" /\ Idle(w)
  /\ \E t \in {lastRead[w].t} :
       \/ /\ SameStep(w, t) \/ (~AdvanceIsCas /\ Active(t))
          /\ ConflictIsAnAnswer \/ sends[t][lastRead[w].node] = 0
          /\ Act(w, t) /\ Step(w, t)
       \/ /\ ~SameStep(w, t) /\ (AdvanceIsCas \/ ~Active(t))
          /\ UNCHANGED <<enrollment, sends, moves, actedAfterExit, endedAs>>
       \/ \* A conflict that is an error rolls the transaction back; it is retried without end.
          /\ SameStep(w, t) /\ ~ConflictIsAnAnswer /\ sends[t][lastRead[w].node] > 0
          /\ UNCHANGED <<enrollment, sends, moves, actedAfterExit, endedAs>>
  /\ UNCHANGED <<liveVersion, archived, crashes, placedIn, enrolledLate, enrolledAgain>>
\* The same in two transactions (mutant OneTx only).
ActAlone(w) ==
  /\ ~OneTx /\ pc[w] = "read" /\ \E t \in {lastRead[w].t} : Act(w, t)
  /\ pc' = [pc EXCEPT ![w] = "acted"]
  /\ UNCHANGED <<liveVersion, archived, enrollment, lastRead, crashes, placedIn, moves, enrolledLate, enrolledAgain, endedAs>>
StepAlone(w) ==
  /\ pc[w] = "acted" /\ Idle(w)
  /\ \E t \in {lastRead[w].t} :
       \/ SameStep(w, t) /\ Step(w, t)
       \/ ~SameStep(w, t) /\ UNCHANGED <<enrollment, moves, endedAs>>
  /\ UNCHANGED <<liveVersion, archived, sends, crashes, placedIn, actedAfterExit, enrolledLate, enrolledAgain>>
Crash(w) ==
  /\ pc[w] # "idle" /\ crashes > 0 /\ crashes' = crashes - 1 /\ Idle(w)
  /\ UNCHANGED <<liveVersion, archived, enrollment, sends, placedIn, moves, actedAfterExit, enrolledLate, enrolledAgain, endedAs>>

\* Publish sets the live version. It enrolls and moves no enrollment.
Publish ==
  /\ liveVersion = 1 /\ liveVersion' = 2
  /\ enrollment' = IF PublishOnlySetsVersion THEN enrollment
                   ELSE [t \in Triggers |-> IF Active(t) THEN [enrollment[t] EXCEPT !.version = 2] ELSE enrollment[t]]
  /\ UNCHANGED <<archived, sends, pc, lastRead, crashes, placedIn, moves, actedAfterExit, enrolledLate, enrolledAgain, endedAs>>
\* Move: the admin moves an active enrollment, by the node map.
Move(t) ==
  /\ liveVersion = 2 /\ (Active(t) \/ (~MovesActiveOnly /\ enrollment[t].status # "none")) /\ enrollment[t].version = 1
  /\ enrollment' = [enrollment EXCEPT ![t] = [@ EXCEPT !.version = 2, !.node = IF MovesByMap THEN 1 ELSE @, !.step = @ + 1]]
  /\ placedIn' = [placedIn EXCEPT ![t] = 2] /\ moves' = [moves EXCEPT ![t] = @ + 1]
  /\ UNCHANGED <<liveVersion, archived, sends, pc, lastRead, crashes, actedAfterExit, enrolledLate, enrolledAgain, endedAs>>
\* Exit: the admin ends an enrollment.
Exit(t) ==
  /\ Active(t) /\ enrollment' = [enrollment EXCEPT ![t] = [@ EXCEPT !.status = "exited"]]
  /\ endedAs' = [endedAs EXCEPT ![t] = enrollment'[t]]
  /\ UNCHANGED <<liveVersion, archived, sends, pc, lastRead, crashes, placedIn, moves, actedAfterExit, enrolledLate, enrolledAgain>>
\* Archive: no profile enrolls any more; active enrollments continue.
Archive ==
  /\ ~archived /\ archived' = TRUE
  /\ UNCHANGED <<liveVersion, enrollment, sends, pc, lastRead, crashes, placedIn, moves, actedAfterExit, enrolledLate, enrolledAgain,
                 endedAs>>

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
TypeOK == /\ liveVersion \in {1, 2} /\ \A t \in Triggers : enrollment[t].status \in {"none", "active", "completed", "exited"}
\* A uniqueness key enrolls once, whatever the end of that enrollment.
OneEnrollmentPerKey == SameKey => Cardinality({t \in Triggers : enrollment[t].status # "none"}) <= 1
\* A profile has at most one active enrollment in a flow.
AtMostOneActiveEnrollment == Cardinality({t \in Triggers : Active(t)}) <= 1
\* A node acts at most once for an enrollment.
AtMostOneNotificationPerNode == \A t \in Triggers : \A k \in {1, 2, 3} : sends[t][k] <= 1
\* Every step is taken once: no enrollment is moved from an outdated read.
EachStepOnce == \A t \in Triggers : moves[t] = enrollment[t].step
\* No action is taken for an enrollment that has ended.
NoActionAfterExit == ~actedAfterExit
\* Publishing a version moves no enrollment.
PublishMovesNoEnrollment == \A t \in Triggers : enrollment[t].version = placedIn[t]
\* An active enrollment is at a node that exists in its version.
NoEnrollmentStranded == \A t \in Triggers : Active(t) => enrollment[t].node \in Nodes(VersionOf(t))
\* No profile enrolls into an archived flow.
NoEnrollmentAfterArchive == ~enrolledLate
\* A changed recurrence does not enroll a profile that it counts as enrolled.
RecurrenceCountsEarlier == ~enrolledAgain
\* An ended enrollment never changes.
EndedStaysEnded == \A t \in Triggers : enrollment[t].status \in {"completed", "exited"} => enrollment[t] = endedAs[t]
\* No enrollment passes a node that has not acted.
EveryNodeActs == \A t \in Triggers :
  /\ (enrollment[t].status # "none" /\ enrollment[t].node # 1) => sends[t][1] > 0
  /\ (enrollment[t].status = "completed") => sends[t][IF enrollment[t].version = 1 THEN 2 ELSE 3] > 0
\* Every enrollment ends.
EveryEnrollmentEnds == []<>(\A t \in Triggers : ~Active(t))

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverBothVersions == ~\E t, u \in Triggers : enrollment[t].version = 1 /\ enrollment[u].version = 2
NeverMovedBack == ~\E t \in Triggers : enrollment[t].version = 2 /\ enrollment[t].node = 1 /\ sends[t][1] = 1
NeverStaleWorker == ~\E w \in Workers : pc[w] = "read" /\ \E t \in Triggers : lastRead[w].t = t /\ enrollment[t].step > lastRead[w].step
NeverExitedUnderWorker == ~\E w \in Workers : pc[w] = "read" /\ \E t \in Triggers : lastRead[w].t = t /\ enrollment[t].status = "exited"
=============================================================================
