--------------------------- MODULE WebhookDelivery ---------------------------
\* A message to a customer's endpoint: leased, called, settled, until it ends.
\*
\* Modelled: one message, workers that claim it under a token, call the
\* receiver and settle the answer; an enrollment that waits for the answer; a
\* crash at every step; a settlement that fails after the call; answers of all
\* kinds. Outbox.tla shows that the message is written with the change that it
\* reports, and when it is cleaned up.
\*
\* Left out, and why that is sound:
\* - Several messages and endpoints: each row has its own lease, and the limit
\*   of calls per endpoint only delays calls.
\* - Time as a number: back-off, lease and the time after which a message fails
\*   are steps that may happen, or numbers of calls.
\* - The effect of the answer on the enrollment: FlowEngine.tla.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers,  \* workers that deliver messages
  NoWorker, \* no worker
  Answers,  \* what a call may come to: accepted, lost (accepted without an answer), timeout, refused (permanently)
  MaxCalls, \* calls after which a message fails
  Crashes,  \* how many crashes there are
  Failures  \* how many settlements fail after the call

CONSTANTS            \* Guards. TRUE in the design; each is FALSE in its own mutant
  ClaimIsLocked,     \* a row is claimed only if it is due under its lock
  FreshToken,        \* each claim has its own token
  SettleIsFenced,    \* a settlement needs the row to have the claim's token
  OneTx,             \* the message ends in the transaction that resumes the enrollment
  KeepsAnswer,       \* an answer that could not be settled is kept in the row
  ReclaimsExpired,   \* a message whose lease has expired is due again
  LeaseOutlivesWork, \* a lease lasts longer than a call and its settlement
  GivesUp,           \* after MaxCalls calls the message fails
  CountsCalls,       \* ... and not before
  TimeoutIsNoAnswer  \* a call without an answer delivers nothing

VARIABLES
  status,        \* outbox.status: pending, delivered, failed
  lease,         \* the token that holds the row; 0: none
  holder,        \* the worker of that claim; NoWorker: none
  due,           \* the back-off has ended, or the lease has expired
  keptAnswer,    \* an answer that is not settled yet; none
  calls,         \* calls that were claimed
  pc,            \* worker -> idle, found, claimed, answered, ended (mutant OneTx only)
  token,         \* worker -> the token of its claim; 0: none
  answer,        \* worker -> the result of its call, or the kept answer
  received,      \* the receiver has the message
  resumed,       \* how often the enrollment was resumed with an answer
  resumedWith,   \* the answer that it was resumed with first
  crashes,       \* crashes left
  failures,      \* failures left
  foreignSettle, \* history: a row was settled that another claim held, or that had ended
  calledAgain,   \* history: a call was made although an answer was kept, or the message had ended
  failedEarly    \* history: a message failed before all its calls

vars == <<status, lease, holder, due, keptAnswer, calls, pc, token, answer, received, resumed, resumedWith, crashes, failures,
          foreignSettle, calledAgain, failedEarly>>

Init ==
  /\ status = "pending" /\ lease = 0 /\ holder = NoWorker /\ due = TRUE /\ keptAnswer = "none" /\ calls = 0
  /\ pc = [w \in Workers |-> "idle"] /\ token = [w \in Workers |-> 0] /\ answer = [w \in Workers |-> "none"]
  /\ received = FALSE /\ resumed = 0 /\ resumedWith = "none" /\ crashes = Crashes /\ failures = Failures
  /\ foreignSettle = FALSE /\ calledAgain = FALSE /\ failedEarly = FALSE

At(w, where) == pc' = [pc EXCEPT ![w] = where]
ClearClaim(w) == token' = [token EXCEPT ![w] = 0] /\ answer' = [answer EXCEPT ![w] = "none"]
InUse == {lease} \union {token[w] : w \in Workers}
Fresh == CHOOSE n \in 1..(Cardinality(Workers) + 2) : n \notin InUse /\ \A m \in 1..(n - 1) : m \in InUse
Final(a) == a \in {"accepted", "refused"}
GivesUpNow == GivesUp /\ (calls = MaxCalls \/ ~CountsCalls)
\* The status of a message, and the answer for its enrollment, by the result of
\* a call.
StatusBy(a) == IF a = "accepted" \/ (a = "timeout" /\ ~TimeoutIsNoAnswer) THEN "delivered" ELSE "failed"
IsDue == status = "pending" /\ due

\* FindDue: a worker finds the message due.
FindDue(w) ==
  /\ pc[w] = "idle" /\ IsDue /\ At(w, "found")
  /\ UNCHANGED <<status, lease, holder, due, keptAnswer, calls, token, answer, received, resumed, resumedWith, crashes, failures,
                 foreignSettle, calledAgain, failedEarly>>
\* Claim: it takes the lease, with the answer that an earlier claim could not
\* settle.
Claim(w) ==
  /\ pc[w] = "found"
  /\ \/ /\ ClaimIsLocked /\ ~IsDue /\ At(w, "idle") /\ UNCHANGED <<lease, holder, due, calls, token, answer>>
     \/ /\ IsDue \/ ~ClaimIsLocked
        /\ token' = [token EXCEPT ![w] = IF FreshToken THEN Fresh ELSE 1]
        /\ lease' = (IF FreshToken THEN Fresh ELSE 1) /\ holder' = w /\ due' = FALSE
        /\ answer' = [answer EXCEPT ![w] = keptAnswer]
        /\ calls' = IF keptAnswer = "none" /\ calls < MaxCalls THEN calls + 1 ELSE calls
        /\ At(w, "claimed")
  /\ UNCHANGED <<status, keptAnswer, received, resumed, resumedWith, crashes, failures, foreignSettle, calledAgain, failedEarly>>
\* Call: one request, unless an answer was kept.
Call(w) ==
  /\ pc[w] = "claimed" /\ At(w, "answered")
  /\ \/ answer[w] # "none" /\ UNCHANGED <<answer, received, calledAgain>>
     \/ /\ answer[w] = "none" /\ calledAgain' = (calledAgain \/ keptAnswer # "none" \/ status # "pending")
        /\ \E a \in Answers :
             /\ answer' = [answer EXCEPT ![w] = IF a = "lost" THEN "timeout" ELSE a]
             /\ received' = (received \/ a \in {"accepted", "lost"})
  /\ UNCHANGED <<status, lease, holder, due, keptAnswer, calls, token, resumed, resumedWith, crashes, failures, foreignSettle, failedEarly>>
\* Settle: the message ends, or is due again after its back-off. A settlement
\* without the lease has no effect.
Settle(w) ==
  /\ pc[w] = "answered"
  /\ \/ /\ SettleIsFenced /\ lease # token[w] /\ At(w, "idle") /\ ClearClaim(w)
        /\ UNCHANGED <<status, lease, holder, resumed, resumedWith, foreignSettle, failedEarly>>
     \/ /\ lease = token[w] \/ ~SettleIsFenced
        /\ foreignSettle' = (foreignSettle \/ holder # w \/ status # "pending")
        /\ lease' = 0 /\ holder' = NoWorker
        /\ \/ /\ Final(answer[w]) \/ GivesUpNow
              /\ failedEarly' = (failedEarly \/ (~Final(answer[w]) /\ calls < MaxCalls))
              /\ status' = StatusBy(answer[w])
              /\ \/ /\ OneTx /\ resumed' = resumed + 1
                    /\ resumedWith' = (IF resumed = 0 THEN StatusBy(answer[w]) ELSE resumedWith) /\ At(w, "idle") /\ ClearClaim(w)
                 \/ /\ ~OneTx /\ At(w, "ended") /\ UNCHANGED <<resumed, resumedWith, token, answer>>
           \/ /\ ~Final(answer[w]) /\ ~GivesUpNow
              /\ At(w, "idle") /\ ClearClaim(w) /\ UNCHANGED <<status, resumed, resumedWith, failedEarly>>
  /\ UNCHANGED <<due, keptAnswer, calls, received, crashes, failures, calledAgain>>
\* Resume: the second transaction of the mutant OneTx.
Resume(w) ==
  /\ pc[w] = "ended" /\ resumed' = resumed + 1
  /\ resumedWith' = (IF resumed = 0 THEN StatusBy(answer[w]) ELSE resumedWith) /\ At(w, "idle") /\ ClearClaim(w)
  /\ UNCHANGED <<status, lease, holder, due, keptAnswer, calls, received, crashes, failures, foreignSettle, calledAgain, failedEarly>>
\* PutBack: the settlement failed; the answer is kept for the next claim.
PutBack(w) ==
  /\ pc[w] = "answered" /\ failures > 0 /\ failures' = failures - 1 /\ lease = token[w] /\ status = "pending"
  /\ keptAnswer' = IF KeepsAnswer /\ Final(answer[w]) THEN answer[w] ELSE keptAnswer
  /\ calledAgain' = (calledAgain \/ (Final(answer[w]) /\ ~KeepsAnswer))
  /\ lease' = 0 /\ holder' = NoWorker /\ At(w, "idle") /\ ClearClaim(w)
  /\ UNCHANGED <<status, due, calls, received, resumed, resumedWith, crashes, foreignSettle, failedEarly>>
\* Crash: a worker crashes; its lease stays.
Crash(w) ==
  /\ pc[w] # "idle" /\ crashes > 0 /\ crashes' = crashes - 1 /\ At(w, "idle") /\ ClearClaim(w)
  /\ UNCHANGED <<status, lease, holder, due, keptAnswer, calls, received, resumed, resumedWith, failures, foreignSettle, calledAgain,
                 failedEarly>>
\* BackOffEnds: the message is due again.
BackOffEnds ==
  /\ status = "pending" /\ lease = 0 /\ ~due /\ due' = TRUE
  /\ UNCHANGED <<status, lease, holder, keptAnswer, calls, pc, token, answer, received, resumed, resumedWith, crashes, failures,
                 foreignSettle, calledAgain, failedEarly>>
\* Expire: a lease expires, in the design only if its holder has crashed.
Expire ==
  /\ ReclaimsExpired /\ status = "pending" /\ lease # 0 /\ ~due
  /\ LeaseOutlivesWork => (\A w \in Workers : token[w] # lease)
  /\ due' = TRUE
  /\ UNCHANGED <<status, lease, holder, keptAnswer, calls, pc, token, answer, received, resumed, resumedWith, crashes, failures,
                 foreignSettle, calledAgain, failedEarly>>

Next ==
  \/ \E w \in Workers : FindDue(w)
  \/ \E w \in Workers : Claim(w)
  \/ \E w \in Workers : Call(w)
  \/ \E w \in Workers : Settle(w)
  \/ \E w \in Workers : Resume(w)
  \/ \E w \in Workers : PutBack(w)
  \/ \E w \in Workers : Crash(w)
  \/ BackOffEnds
  \/ Expire
Fairness ==
  /\ WF_vars(BackOffEnds) /\ WF_vars(Expire) /\ WF_vars(\E w \in Workers : FindDue(w))
  /\ \A w \in Workers : WF_vars(Claim(w)) /\ WF_vars(Call(w)) /\ WF_vars(Settle(w)) /\ WF_vars(Resume(w))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == status \in {"pending", "delivered", "failed"} /\ calls \in 0..MaxCalls /\ resumed \in Nat
\* The enrollment is resumed at most once, however many workers have called.
ResumedOnce == resumed <= 1
\* A message that has ended has resumed its enrollment.
EndResumes == (status # "pending") => (resumed > 0)
\* ... with the status in the message's row.
ResumedWithTheStatus == (resumed > 0) => (resumedWith = status)
\* A delivered message was received.
DeliveredMeansReceived == (status = "delivered") => received
\* Only the claim that holds the lease settles, and an ended message never
\* changes.
OnlyOwnerSettles == ~foreignSettle
\* No call is made for a message whose answer is known, or that has ended.
NoCallAfterAnswer == ~calledAgain
\* A message fails without an answer only after all its calls.
FailedAfterAllCalls == ~failedEarly
\* One worker at a time calls. This needs leases that last longer than the
\* work.
OneCallAtATime == Cardinality({w \in Workers : pc[w] \in {"claimed", "answered"}}) <= 1
\* Every message ends.
EveryMessageEnds == <>(status # "pending")

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverReceivedAndFailed == ~(received /\ status = "failed")
NeverSettledLater == ~(keptAnswer = "accepted" /\ status = "delivered")
NeverReclaimed == ~(calls > 1 /\ status = "delivered" /\ crashes < Crashes)
NeverRefused == ~(status = "failed" /\ calls < MaxCalls)
=============================================================================
