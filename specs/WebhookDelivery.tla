--------------------------- MODULE WebhookDelivery ---------------------------
\* A message to a customer's endpoint: leased, called, settled, until it ends.
\*
\* Modelled: one message, workers that claim it under a token, call the receiver
\* and settle what came of it; an enrollment that waits for the answer; a crash
\* at every step; a settlement that fails after the call; answers of all kinds.
\* Outbox.tla says that the message is written with the change that it reports,
\* and when it is cleaned up.
\*
\* Left out, and why that is sound:
\* - Several messages and endpoints: each row has a lease of its own, and the
\*   limit of calls per endpoint changes only who waits.
\* - Time as a number: back-off, lease and the time after which a message is
\*   given up are steps that may happen, or numbers of calls.
\* - What the answer makes of the enrollment: FlowEngine.tla.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers,
  NoOne,
  Answers,          \* what a call may come to: taken, lost (taken, but no answer), silence, refused (for good)
  Tries,            \* calls after which a message is given up
  Crashes,
  Failures          \* settlements that fail after the call

CONSTANTS           \* Guards. TRUE in the design; each is FALSE in its own mutant
  ClaimIsLocked,    \* a row is claimed only if it is due under its lock
  FreshToken,       \* each claim has a token of its own
  SettleIsGated,    \* a settlement needs the row to have the claim's token
  OneTx,            \* the message ends in the transaction that resumes the enrollment
  KeepsAnswer,      \* an answer that could not be settled is kept in the row
  ReclaimsExpired,  \* a message whose lease has run out is due again
  LeaseOutlivesWork,\* a lease lasts longer than a call and its settlement
  GivesUp,          \* after so many calls the message has failed
  CountsCalls,      \* ... and not before
  SilenceIsNoAnswer \* a call without an answer delivers nothing

VARIABLES
  state,    \* pending, delivered, failed
  lease,    \* the token that holds the row; 0: none
  holder,   \* the worker whose claim that is; NoOne: none
  due,      \* the back-off is over, or the lease has run out
  kept,     \* an answer that is yet to be settled; none
  tries,    \* calls that were claimed
  pc,       \* worker -> idle, looked, claimed, answered, ended (OneTx is off)
  token,    \* worker -> the token of its claim; 0: none
  answer,   \* worker -> what its call came to, or what was kept
  taken,    \* the receiver has the message
  resumed,  \* how often the enrollment was resumed with an answer
  with,     \* what it was resumed with first
  crashes, failures,
  robbed,   \* history: a row was settled that another claim held, or that had ended
  again,    \* history: a call was made although an answer was kept, or the message had ended
  early     \* history: a message was given up before its calls were spent

vars == <<state, lease, holder, due, kept, tries, pc, token, answer, taken, resumed, with, crashes, failures, robbed, again, early>>

Init ==
  /\ state = "pending" /\ lease = 0 /\ holder = NoOne /\ due = TRUE /\ kept = "none" /\ tries = 0
  /\ pc = [w \in Workers |-> "idle"] /\ token = [w \in Workers |-> 0] /\ answer = [w \in Workers |-> "none"]
  /\ taken = FALSE /\ resumed = 0 /\ with = "none" /\ crashes = Crashes /\ failures = Failures
  /\ robbed = FALSE /\ again = FALSE /\ early = FALSE

At(w, where) == pc' = [pc EXCEPT ![w] = where]
Forget(w) == token' = [token EXCEPT ![w] = 0] /\ answer' = [answer EXCEPT ![w] = "none"]
InUse == {lease} \union {token[w] : w \in Workers}
Fresh == CHOOSE n \in 1..(Cardinality(Workers) + 2) : n \notin InUse /\ \A m \in 1..(n - 1) : m \in InUse
Final(a) == a \in {"taken", "refused"}
GivesNow == GivesUp /\ (tries = Tries \/ ~CountsCalls)
\* What a message and its enrollment become by an answer.
End(a) == IF a = "taken" \/ (a = "silence" /\ ~SilenceIsNoAnswer) THEN "delivered" ELSE "failed"
IsDue == state = "pending" /\ due

\* Look: a worker finds the message due.
Look(w) ==
  /\ pc[w] = "idle" /\ IsDue /\ At(w, "looked")
  /\ UNCHANGED <<state, lease, holder, due, kept, tries, token, answer, taken, resumed, with, crashes, failures, robbed, again, early>>
\* Claim: it takes the lease, with what an earlier claim could not settle.
Claim(w) ==
  /\ pc[w] = "looked"
  /\ \/ /\ ClaimIsLocked /\ ~IsDue /\ At(w, "idle") /\ UNCHANGED <<lease, holder, due, tries, token, answer>>
     \/ /\ IsDue \/ ~ClaimIsLocked
        /\ token' = [token EXCEPT ![w] = IF FreshToken THEN Fresh ELSE 1]
        /\ lease' = (IF FreshToken THEN Fresh ELSE 1) /\ holder' = w /\ due' = FALSE
        /\ answer' = [answer EXCEPT ![w] = kept]
        /\ tries' = IF kept = "none" /\ tries < Tries THEN tries + 1 ELSE tries
        /\ At(w, "claimed")
  /\ UNCHANGED <<state, kept, taken, resumed, with, crashes, failures, robbed, again, early>>
\* Call: one request, unless an answer was kept.
Call(w) ==
  /\ pc[w] = "claimed" /\ At(w, "answered")
  /\ \/ answer[w] # "none" /\ UNCHANGED <<answer, taken, again>>
     \/ /\ answer[w] = "none" /\ again' = (again \/ kept # "none" \/ state # "pending")
        /\ \E a \in Answers : answer' = [answer EXCEPT ![w] = IF a = "lost" THEN "silence" ELSE a] /\ taken' = (taken \/ a \in {"taken", "lost"})
  /\ UNCHANGED <<state, lease, holder, due, kept, tries, token, resumed, with, crashes, failures, robbed, early>>
\* Settle: the message ends, or is due again after its back-off. A settlement
\* without the lease changes nothing.
Settle(w) ==
  /\ pc[w] = "answered"
  /\ \/ /\ SettleIsGated /\ lease # token[w] /\ At(w, "idle") /\ Forget(w)
        /\ UNCHANGED <<state, lease, holder, resumed, with, robbed, early>>
     \/ /\ lease = token[w] \/ ~SettleIsGated
        /\ robbed' = (robbed \/ holder # w \/ state # "pending")
        /\ lease' = 0 /\ holder' = NoOne
        /\ \/ /\ Final(answer[w]) \/ GivesNow
              /\ early' = (early \/ (~Final(answer[w]) /\ tries < Tries))
              /\ state' = End(answer[w])
              /\ \/ /\ OneTx /\ resumed' = resumed + 1 /\ with' = (IF resumed = 0 THEN End(answer[w]) ELSE with) /\ At(w, "idle") /\ Forget(w)
                 \/ /\ ~OneTx /\ At(w, "ended") /\ UNCHANGED <<resumed, with, token, answer>>
           \/ /\ ~Final(answer[w]) /\ ~GivesNow
              /\ At(w, "idle") /\ Forget(w) /\ UNCHANGED <<state, resumed, with, early>>
  /\ UNCHANGED <<due, kept, tries, taken, crashes, failures, again>>
\* Resume: the mutant's second transaction.
Resume(w) ==
  /\ pc[w] = "ended" /\ resumed' = resumed + 1 /\ with' = (IF resumed = 0 THEN End(answer[w]) ELSE with) /\ At(w, "idle") /\ Forget(w)
  /\ UNCHANGED <<state, lease, holder, due, kept, tries, taken, crashes, failures, robbed, again, early>>
\* PutBack: the settlement failed; the answer is kept for the next claim.
PutBack(w) ==
  /\ pc[w] = "answered" /\ failures > 0 /\ failures' = failures - 1 /\ lease = token[w] /\ state = "pending"
  /\ kept' = IF KeepsAnswer /\ Final(answer[w]) THEN answer[w] ELSE kept
  /\ again' = (again \/ (Final(answer[w]) /\ ~KeepsAnswer))
  /\ lease' = 0 /\ holder' = NoOne /\ At(w, "idle") /\ Forget(w)
  /\ UNCHANGED <<state, due, tries, taken, resumed, with, crashes, robbed, early>>
\* Crash: a worker dies; its lease stays.
Crash(w) ==
  /\ pc[w] # "idle" /\ crashes > 0 /\ crashes' = crashes - 1 /\ At(w, "idle") /\ Forget(w)
  /\ UNCHANGED <<state, lease, holder, due, kept, tries, taken, resumed, with, failures, robbed, again, early>>
\* Wait: the back-off is over.
Wait ==
  /\ state = "pending" /\ lease = 0 /\ ~due /\ due' = TRUE
  /\ UNCHANGED <<state, lease, holder, kept, tries, pc, token, answer, taken, resumed, with, crashes, failures, robbed, again, early>>
\* Expire: a lease runs out, in the design only if its holder is dead.
Expire ==
  /\ ReclaimsExpired /\ state = "pending" /\ lease # 0 /\ ~due
  /\ LeaseOutlivesWork => (\A w \in Workers : token[w] # lease)
  /\ due' = TRUE
  /\ UNCHANGED <<state, lease, holder, kept, tries, pc, token, answer, taken, resumed, with, crashes, failures, robbed, again, early>>

Next ==
  \/ \E w \in Workers : Look(w)
  \/ \E w \in Workers : Claim(w)
  \/ \E w \in Workers : Call(w)
  \/ \E w \in Workers : Settle(w)
  \/ \E w \in Workers : Resume(w)
  \/ \E w \in Workers : PutBack(w)
  \/ \E w \in Workers : Crash(w)
  \/ Wait
  \/ Expire
Fairness ==
  /\ WF_vars(Wait) /\ WF_vars(Expire) /\ WF_vars(\E w \in Workers : Look(w))
  /\ \A w \in Workers : WF_vars(Claim(w)) /\ WF_vars(Call(w)) /\ WF_vars(Settle(w)) /\ WF_vars(Resume(w))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state.
TypeOK == state \in {"pending", "delivered", "failed"} /\ tries \in 0..Tries /\ resumed \in Nat
\* The enrollment is resumed once at most, however many workers have called.
ResumedOnce == resumed <= 1
\* A message that has ended has resumed its enrollment.
EndResumes == (state # "pending") => (resumed > 0)
\* ... with what the message's row says.
ResumedWithTheState == (resumed > 0) => (with = state)
\* A message that counts as delivered was taken.
DeliveredMeansTaken == (state = "delivered") => taken
\* Only the claim that holds the lease settles, and an ended message stays as it is.
OnlyOwnerSettles == ~robbed
\* No call is made for a message whose answer is known, or that has ended.
NoCallAfterAnswer == ~again
\* A message fails for want of an answer only after all its calls.
GivenUpLate == ~early
\* One worker at a time calls. It needs leases that outlive the work.
OneCallAtATime == Cardinality({w \in Workers : pc[w] \in {"claimed", "answered"}}) <= 1
\* Every message ends.
EveryMessageEnds == <>(state # "pending")

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverTakenAndFailed == ~(taken /\ state = "failed")
NeverSettledLater == ~(kept = "taken" /\ state = "delivered")
NeverReclaimed == ~(tries > 1 /\ state = "delivered" /\ crashes < Crashes)
NeverRefused == ~(state = "failed" /\ tries < Tries)
=============================================================================
