-------------------------- MODULE CampaignIteration --------------------------
\* An A/B iteration: which evaluator decides, what is recorded, what is rolled
\* out, and to which profiles.
\*
\* Modelled: two evaluators with different numbers, because events arrive while
\* they read; a crash at every step and the takeover of an evaluation; the
\* rollout to every profile without a notification, while the sample's own
\* fan-out may still be writing.
\*
\* Left out on purpose:
\* - The variant of a profile, and whether it is in the sample, is a salted
\*   hash: the same by construction. That the traffic converges to the declared
\*   proportions is a matter of probability, which TLA+ does not express.
\* - The statistics. Any choice is possible here; the code's method is tested.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Evaluators, \* processes that evaluate the iteration
  Variants,   \* the variants that compete
  None,       \* no evaluator, no variant
  Profiles,   \* 1..n; 1 is in the sample
  Crashes     \* how many crashes and early expiries there are

CONSTANTS             \* Guards. TRUE in the design; each is FALSE in its own mutant
  ClaimIsCas,         \* running -> evaluating is a compare-and-set
  CommitIsFenced,     \* the winner is written only under the token
  WinnerIsVariant,    \* ... and is one of the variants that competed
  TakesOver,          \* an evaluation whose lease has expired can be claimed again
  RolloutInSameTx,    \* the winner and the rollout's job are one transaction
  RolloutReadsRecord, \* the rollout sends the recorded winner, not the one that a job names
  UniqueKey           \* one notification per profile and campaign, whatever the iteration

VARIABLES
  status,       \* iterations.status: running, evaluating, decided, rolled
  evaluatingBy, \* iterations.evaluating_by
  expired,      \* iterations.evaluating_until has passed
  winner,       \* iterations.winner
  pc,           \* evaluator -> idle, claimed, chosen, decided
  choice,       \* evaluator -> the best variant by its numbers
  job,          \* the rollout's job: the variant that it names
  notified,     \* profile -> notifications
  rolledOut,    \* the variants that the rollout has sent
  crashes,      \* faults left
  writes,       \* history: how often a winner was written
  wentBack      \* history: the status has gone back

vars == <<status, evaluatingBy, expired, winner, pc, choice, job, notified, rolledOut, crashes, writes, wentBack>>

Init ==
  /\ status = "running" /\ evaluatingBy = None /\ expired = FALSE /\ winner = None
  /\ pc = [e \in Evaluators |-> "idle"] /\ choice = [e \in Evaluators |-> None]
  /\ job = None /\ notified = [p \in Profiles |-> 0] /\ rolledOut = {} /\ crashes = Crashes /\ writes = 0 /\ wentBack = FALSE

At(e, where) == pc' = [pc EXCEPT ![e] = where]
Fault == crashes > 0 /\ crashes' = crashes - 1
\* The evaluator that holds the lease is running.
EvaluatorRuns == \E e \in Evaluators : evaluatingBy = e /\ pc[e] # "idle"

\* Claim: one evaluator claims the iteration; another takes it over when the
\* lease has expired.
Claim(e) ==
  /\ pc[e] = "idle"
  /\ status = "running" \/ (status = "evaluating" /\ ((expired /\ TakesOver) \/ ~ClaimIsCas))
  /\ status' = "evaluating" /\ evaluatingBy' = e /\ expired' = FALSE /\ At(e, "claimed")
  /\ UNCHANGED <<winner, choice, job, notified, rolledOut, crashes, writes, wentBack>>
\* Decide: it reads the numbers, which keep changing, and chooses.
Decide(e) ==
  /\ pc[e] = "claimed" /\ At(e, "chosen")
  /\ \E v \in Variants \union (IF WinnerIsVariant THEN {} ELSE {"control"}) :
       /\ choice' = [choice EXCEPT ![e] = v]
       /\ job' = IF RolloutReadsRecord THEN job ELSE v
  /\ UNCHANGED <<status, evaluatingBy, expired, winner, notified, rolledOut, crashes, writes, wentBack>>
\* Commit: the winner and the rollout's job, under the token.
Commit(e) ==
  /\ pc[e] = "chosen"
  /\ \E ours \in {(evaluatingBy = e /\ status = "evaluating") \/ ~CommitIsFenced} :
       \/ /\ ours /\ winner' = choice[e] /\ status' = "decided" /\ evaluatingBy' = None /\ expired' = FALSE
          /\ job' = IF RolloutInSameTx /\ RolloutReadsRecord THEN choice[e] ELSE job
          /\ writes' = writes + 1 /\ wentBack' = (wentBack \/ status = "rolled")
          /\ At(e, IF RolloutInSameTx THEN "idle" ELSE "decided")
       \/ /\ ~ours /\ At(e, "idle") /\ UNCHANGED <<winner, status, evaluatingBy, expired, job, writes, wentBack>>
  /\ UNCHANGED <<choice, notified, rolledOut, crashes>>
\* Enqueue: the job in a transaction of its own (mutant RolloutInSameTx only).
Enqueue(e) ==
  /\ pc[e] = "decided" /\ job' = choice[e] /\ At(e, "idle")
  /\ UNCHANGED <<status, evaluatingBy, expired, winner, choice, notified, rolledOut, crashes, writes, wentBack>>
\* Crash ends an evaluator at any step.
Crash(e) ==
  /\ pc[e] # "idle" /\ Fault /\ At(e, "idle")
  /\ UNCHANGED <<status, evaluatingBy, expired, winner, choice, job, notified, rolledOut, writes, wentBack>>
\* Expire: evaluating_until passes, also while the evaluator is alive.
Expire ==
  /\ status = "evaluating" /\ ~expired /\ expired' = TRUE
  /\ (EvaluatorRuns /\ Fault) \/ (~EvaluatorRuns /\ UNCHANGED crashes)
  /\ UNCHANGED <<status, evaluatingBy, winner, pc, choice, job, notified, rolledOut, writes, wentBack>>

Notify(p) == notified' = IF UniqueKey /\ notified[p] > 0 THEN notified ELSE [notified EXCEPT ![p] = @ + 1]
\* Sample: the sample's fan-out writes its notification.
Sample == notified[1] = 0 /\ Notify(1) /\ UNCHANGED <<status, evaluatingBy, expired, winner, pc, choice, job, rolledOut, crashes,
                                                      writes, wentBack>>
\* RepeatSample: the same chunk, read before the rollout began and written
\* after.
RepeatSample == ~UniqueKey /\ notified[1] = 1 /\ Notify(1) /\ UNCHANGED <<status, evaluatingBy, expired, winner, pc, choice, job,
                                                                          rolledOut, crashes, writes, wentBack>>
\* Rollout: the winner to a profile without a notification.
Rollout(p) ==
  /\ status = "decided" /\ job # None /\ notified[p] = 0 /\ Notify(p)
  /\ rolledOut' = rolledOut \union {IF RolloutReadsRecord THEN winner ELSE job}
  /\ UNCHANGED <<status, evaluatingBy, expired, winner, pc, choice, job, crashes, writes, wentBack>>
\* Finish: every profile has a notification.
Finish ==
  /\ status = "decided" /\ job # None /\ \A p \in Profiles : notified[p] > 0
  /\ status' = "rolled" /\ UNCHANGED <<evaluatingBy, expired, winner, pc, choice, job, notified, rolledOut, crashes, writes, wentBack>>

Next ==
  \/ \E e \in Evaluators : Claim(e)
  \/ \E e \in Evaluators : Decide(e)
  \/ \E e \in Evaluators : Commit(e)
  \/ \E e \in Evaluators : Enqueue(e)
  \/ \E e \in Evaluators : Crash(e)
  \/ Expire
  \/ Sample
  \/ RepeatSample
  \/ \E p \in Profiles : Rollout(p)
  \/ Finish
Fairness ==
  /\ WF_vars(\E d \in Evaluators : Claim(d)) /\ WF_vars(Expire) /\ WF_vars(Finish)
  /\ \A e \in Evaluators : WF_vars(Decide(e)) /\ WF_vars(Commit(e)) /\ WF_vars(Enqueue(e))
  /\ \A p \in Profiles : WF_vars(Rollout(p))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == status \in {"running", "evaluating", "decided", "rolled"} /\ evaluatingBy \in Evaluators \union {None}
\* A winner is recorded at most once.
WinnerOnce == writes <= 1
\* It is one of the variants that competed.
WinnerCompeted == winner \in Variants \union {None}
\* The status only goes forward.
OnlyForward == ~wentBack
\* Only the recorded winner is rolled out.
RolloutIsRecorded == rolledOut \subseteq {winner}
\* No profile is in the sample and in the rollout.
OneNotificationPerProfile == \A p \in Profiles : notified[p] <= 1
\* An iteration always ends.
NeverStuck == <>(status = "rolled")

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverTakenOver == ~(status = "evaluating" /\ \E e \in Evaluators : evaluatingBy = e /\ \E d \in Evaluators : d # e /\ pc[d] # "idle")
NeverDisagree == ~\E e, d \in Evaluators : pc[e] = "chosen" /\ pc[d] = "chosen" /\ choice[e] # choice[d]
NeverLateJoiner == ~(status = "decided" /\ notified[1] = 0)
NeverRolled == status # "rolled"
=============================================================================
