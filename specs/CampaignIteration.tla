-------------------------- MODULE CampaignIteration --------------------------
\* An A/B iteration: who evaluates, what is recorded, what is rolled out, and to whom.
\*
\* Modelled: two evaluators whose numbers differ, because events go on coming in
\* while they read; a crash at every step and the takeover of an evaluation; the
\* rollout to everybody who has no notification yet, while the sample's own
\* fan-out may still be writing.
\*
\* Considered, and left out on purpose:
\* - Which person gets which variant, and who is in the sample, is a salted hash:
\*   the same by construction. That the traffic converges to the declared shares
\*   is a matter of probability, of which TLA+ says nothing.
\* - The statistics. Any verdict is possible here; the code's method is tested.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Evaluators,
  Variants,
  NoOne,              \* no evaluator, no variant
  People,             \* 1..n; 1 is in the sample
  Crashes             \* how many crashes and early expiries there are

CONSTANTS             \* Guards. TRUE in the design; each is FALSE in its own mutant
  ClaimIsCas,         \* running -> evaluating is a compare-and-set
  CommitIsGated,      \* the winner is written only under the token
  WinnerIsVariant,    \* ... and is one of those that competed
  TakesOver,          \* an evaluation whose time is over can be claimed again
  RolloutInSameTx,    \* the winner and the rollout's job are one transaction
  RolloutReadsRecord, \* the rollout sends what is recorded, not what a job says
  UniqueKey           \* one notification per person and campaign, whatever the iteration

VARIABLES
  status,   \* iterations.status: running, evaluating, decided, rolled
  by,       \* iterations.evaluating_by
  expired,  \* iterations.evaluating_until has passed
  winner,   \* iterations.winner
  pc,       \* evaluator -> idle, claimed, picked, decided
  pick,     \* evaluator -> the variant that its numbers favour
  job,      \* the rollout's job: the variant that it names
  got,      \* person -> notifications
  sent,     \* the variants that the rollout has sent
  crashes,  \* faults left
  writes,   \* history: how often a winner was written
  back      \* history: the status has gone back

vars == <<status, by, expired, winner, pc, pick, job, got, sent, crashes, writes, back>>

Init ==
  /\ status = "running" /\ by = NoOne /\ expired = FALSE /\ winner = NoOne
  /\ pc = [e \in Evaluators |-> "idle"] /\ pick = [e \in Evaluators |-> NoOne]
  /\ job = NoOne /\ got = [p \in People |-> 0] /\ sent = {} /\ crashes = Crashes /\ writes = 0 /\ back = FALSE

At(e, where) == pc' = [pc EXCEPT ![e] = where]
Fault == crashes > 0 /\ crashes' = crashes - 1
\* Somebody works on the evaluation and may come back.
Working == \E e \in Evaluators : by = e /\ pc[e] # "idle"

\* Claim: one evaluator takes the iteration; another takes it over when its time is over.
Claim(e) ==
  /\ pc[e] = "idle"
  /\ status = "running" \/ (status = "evaluating" /\ ((expired /\ TakesOver) \/ ~ClaimIsCas))
  /\ status' = "evaluating" /\ by' = e /\ expired' = FALSE /\ At(e, "claimed")
  /\ UNCHANGED <<winner, pick, job, got, sent, crashes, writes, back>>
\* Judge: it reads the numbers, which go on moving, and picks.
Judge(e) ==
  /\ pc[e] = "claimed" /\ At(e, "picked")
  /\ \E v \in Variants \union (IF WinnerIsVariant THEN {} ELSE {"control"}) :
       /\ pick' = [pick EXCEPT ![e] = v]
       /\ job' = IF RolloutReadsRecord THEN job ELSE v
  /\ UNCHANGED <<status, by, expired, winner, got, sent, crashes, writes, back>>
\* Commit: winner, verdict and the rollout's job, under the token.
Commit(e) ==
  /\ pc[e] = "picked"
  /\ \E ours \in {(by = e /\ status = "evaluating") \/ ~CommitIsGated} :
       \/ /\ ours /\ winner' = pick[e] /\ status' = "decided" /\ by' = NoOne /\ expired' = FALSE
          /\ job' = IF RolloutInSameTx /\ RolloutReadsRecord THEN pick[e] ELSE job
          /\ writes' = writes + 1 /\ back' = (back \/ status = "rolled")
          /\ At(e, IF RolloutInSameTx THEN "idle" ELSE "decided")
       \/ /\ ~ours /\ At(e, "idle") /\ UNCHANGED <<winner, status, by, expired, job, writes, back>>
  /\ UNCHANGED <<pick, got, sent, crashes>>
\* Enqueue: the job in a transaction of its own (mutant RolloutInSameTx only).
Enqueue(e) ==
  /\ pc[e] = "decided" /\ job' = pick[e] /\ At(e, "idle")
  /\ UNCHANGED <<status, by, expired, winner, pick, got, sent, crashes, writes, back>>
\* Crash ends an evaluator anywhere.
Crash(e) ==
  /\ pc[e] # "idle" /\ Fault /\ At(e, "idle")
  /\ UNCHANGED <<status, by, expired, winner, pick, job, got, sent, writes, back>>
\* Expire: evaluating_until passes, also under a living evaluator.
Expire ==
  /\ status = "evaluating" /\ ~expired /\ expired' = TRUE
  /\ (Working /\ Fault) \/ (~Working /\ UNCHANGED crashes)
  /\ UNCHANGED <<status, by, winner, pc, pick, job, got, sent, writes, back>>

Gets(p) == got' = IF UniqueKey /\ got[p] > 0 THEN got ELSE [got EXCEPT ![p] = @ + 1]
\* Sample: the sample's fan-out writes, and may still be at it.
Sample == got[1] = 0 /\ Gets(1) /\ UNCHANGED <<status, by, expired, winner, pc, pick, job, sent, crashes, writes, back>>
\* Again: the same chunk, read before the rollout began and written after.
Again == ~UniqueKey /\ got[1] = 1 /\ Gets(1) /\ UNCHANGED <<status, by, expired, winner, pc, pick, job, sent, crashes, writes, back>>
\* Rollout: the winner to somebody who has no notification.
Rollout(p) ==
  /\ status = "decided" /\ job # NoOne /\ got[p] = 0 /\ Gets(p)
  /\ sent' = sent \union {IF RolloutReadsRecord THEN winner ELSE job}
  /\ UNCHANGED <<status, by, expired, winner, pc, pick, job, crashes, writes, back>>
\* Finish: everybody has one.
Finish ==
  /\ status = "decided" /\ job # NoOne /\ \A p \in People : got[p] > 0
  /\ status' = "rolled" /\ UNCHANGED <<by, expired, winner, pc, pick, job, got, sent, crashes, writes, back>>

Next ==
  \/ \E e \in Evaluators : Claim(e)
  \/ \E e \in Evaluators : Judge(e)
  \/ \E e \in Evaluators : Commit(e)
  \/ \E e \in Evaluators : Enqueue(e)
  \/ \E e \in Evaluators : Crash(e)
  \/ Expire
  \/ Sample
  \/ Again
  \/ \E p \in People : Rollout(p)
  \/ Finish
Fairness ==
  /\ WF_vars(\E d \in Evaluators : Claim(d)) /\ WF_vars(Expire) /\ WF_vars(Finish)
  /\ \A e \in Evaluators : WF_vars(Judge(e)) /\ WF_vars(Commit(e)) /\ WF_vars(Enqueue(e))
  /\ \A p \in People : WF_vars(Rollout(p))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == status \in {"running", "evaluating", "decided", "rolled"} /\ by \in Evaluators \union {NoOne}
\* A winner is recorded at most once.
WinnerOnce == writes <= 1
\* It is one of the variants that competed.
WinnerIsOneOfThem == winner \in Variants \union {NoOne}
\* The status only goes forward.
OnlyForward == ~back
\* What is rolled out is what is recorded.
RolloutIsTheRecord == sent \subseteq {winner}
\* Nobody is in the sample and in the rollout.
SampleAndRolloutNeverMeet == \A p \in People : got[p] <= 1
\* An iteration is never stuck.
NeverStuck == <>(status = "rolled")

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverTakenOver == ~(status = "evaluating" /\ \E e \in Evaluators : by = e /\ \E d \in Evaluators : d # e /\ pc[d] # "idle")
NeverDisagree == ~\E e, d \in Evaluators : pc[e] = "picked" /\ pc[d] = "picked" /\ pick[e] # pick[d]
NeverLateJoiner == ~(status = "decided" /\ got[1] = 0)
NeverRolled == status # "rolled"
=============================================================================
