-------------------------------- MODULE Resume --------------------------------
\* What was read before a pause calls nobody after the resume.
\*
\* Modelled: an origin (a campaign or a flow) that is paused and resumed, each
\* resume with a number and a time; a profile that opts out at any time; writers
\* (runs of a fan-out, or workers of a flow), each of which reads the last resume
\* and then the profile, and writes its notification and the batch of it, if no
\* other has; the release, which opens the batch after a resume; senders that claim
\* the batch, read the audience again if they must, remember that, and open a
\* window; a clock that may be set back.
\*
\* Left out, and why that is sound:
\* - The call: a window that is open when a pause comes is in flight, and ends by
\*   itself. Here a window is the call.
\* - The lease of a writer: more of them write at once here. Campaign.tla.
\* - The locks of a pause and of a chunk, and pages of a release: Campaign.tla,
\*   Release.tla. A release is of one batch here.
\* - Time that passes: Recheck.tla. Here a batch is read again only after a resume.
\* - Opt-outs of another profile at the same address: Consent.tla.
\* - Two resumes at the same microsecond, with a clock that was set back in
\*   between: the code compares times where the model compares numbers.
EXTENDS Naturals

CONSTANTS
  Writers, \* runs of a fan-out, or workers of a flow
  Senders, \* processes that send, each with its own memory
  Pauses,  \* how often the origin is paused
  Returns, \* how often a sender returns the batch without a call
  Backs    \* how often the clock is set back

CONSTANTS            \* Guards. TRUE in the design; each is FALSE in its own mutant
  WriteReadsResume,  \* a writer writes nothing if the origin was resumed since it read the last resume
  ResumeReadFirst,   \* it reads the last resume before the profile
  StoppedRunsAgain,  \* a writer that wrote nothing because of that reads anew
  ReleaseMarks,      \* a release marks the batch with the resume
  MarkedIsReadAgain, \* the audience is read again for a batch that is marked
  WindowReadsMark,   \* no window opens if the batch was marked since the claim
  MemoryHasMark,     \* what a process remembers of a batch ends when it is marked again
  RemembersClaim,    \* ... also while the audience is read: it remembers the mark of the claim
  ComparesNumbers    \* resumes are compared for equality, and not by their times

VARIABLES
  status,   \* of the origin: sending, paused
  resumes,  \* how many there were
  pauses,   \* pauses left
  at,       \* the time of the last resume (mutant ComparesNumbers only)
  clock,    \* of the database: it advances with each resume (mutant ComparesNumbers only)
  backs,    \* how often it may be set back
  optedOut, \* the profile has opted out
  wpc,      \* writer -> idle, half, read
  wresume,  \* writer -> the resume that it has read
  wtime,    \* writer -> when it has read it
  wout,     \* writer -> it has read the profile as opted out
  batch,    \* none, ready, leased, called, late (called, though opted out meanwhile), skipped
  gate,     \* of the batch: open, held
  mark,     \* batches.resumed_at: the resume that opened its gate; 0: none
  markTime, \* the time of that resume
  spc,      \* sender -> idle, claimed, wanted, checked
  smark,    \* sender -> the mark of the batch that it has claimed
  stime,    \* sender -> when it claimed it
  known,    \* sender -> the mark under which it has read the audience again; 0: none
  returns,  \* returns left
  outThen,  \* history: the profile had opted out before the last resume
  calledSo  \* history: it was called although it had

vars == <<status, resumes, pauses, at, clock, backs, optedOut, wpc, wresume, wtime, wout, batch, gate, mark, markTime, spc, smark, stime,
          known, returns, outThen, calledSo>>

Init ==
  /\ status = "sending" /\ resumes = 0 /\ pauses = Pauses /\ at = 0 /\ clock = 1 /\ backs = Backs /\ optedOut = FALSE
  /\ wpc = [w \in Writers |-> "idle"] /\ wresume = [w \in Writers |-> 0] /\ wtime = [w \in Writers |-> 0]
  /\ wout = [w \in Writers |-> FALSE]
  /\ batch = "none" /\ gate = "open" /\ mark = 0 /\ markTime = 0
  /\ spc = [s \in Senders |-> "idle"] /\ smark = [s \in Senders |-> 0] /\ stime = [s \in Senders |-> 0] /\ known = [s \in Senders |-> 0]
  /\ returns = Returns /\ outThen = FALSE /\ calledSo = FALSE

\* The time, where the design needs none.
Now == IF ComparesNumbers THEN 0 ELSE clock

-----------------------------------------------------------------------------
\* OptOut: the customer's database has the profile as opted out from now on.
OptOut ==
  /\ ~optedOut /\ optedOut' = TRUE
  /\ UNCHANGED <<status, resumes, pauses, at, clock, backs, wpc, wresume, wtime, wout, batch, gate, mark, markTime, spc, smark, stime,
                 known, returns, outThen, calledSo>>
\* SetBack: the clock of the database is set back (mutant ComparesNumbers only).
SetBack ==
  /\ ~ComparesNumbers /\ clock > 0 /\ backs > 0 /\ backs' = backs - 1 /\ clock' = 0
  /\ UNCHANGED <<status, resumes, pauses, at, optedOut, wpc, wresume, wtime, wout, batch, gate, mark, markTime, spc, smark, stime, known,
                 returns, outThen, calledSo>>

\* Pause closes the gate of the batch, if it is written and has not ended.
Waits == batch \in {"ready", "leased"}
Pause ==
  /\ status = "sending" /\ pauses > 0 /\ pauses' = pauses - 1 /\ status' = "paused" /\ gate' = (IF Waits THEN "held" ELSE gate)
  /\ UNCHANGED <<resumes, at, clock, backs, optedOut, wpc, wresume, wtime, wout, batch, mark, markTime, spc, smark, stime, known, returns,
                 outThen, calledSo>>
\* Resume: writers go on. Batches are opened by Release, at once or in a page.
Resume ==
  /\ status = "paused" /\ status' = "sending" /\ resumes' = resumes + 1 /\ outThen' = optedOut
  /\ clock' = (IF ComparesNumbers THEN clock ELSE clock + 1) /\ at' = (IF ComparesNumbers THEN 0 ELSE clock + 1)
  /\ UNCHANGED <<pauses, backs, optedOut, wpc, wresume, wtime, wout, batch, gate, mark, markTime, spc, smark, stime, known, returns,
                 calledSo>>
\* Release opens the gate and marks the batch, in one statement.
Release ==
  /\ status = "sending" /\ gate = "held" /\ Waits /\ gate' = "open"
  /\ mark' = (IF ReleaseMarks THEN resumes ELSE mark) /\ markTime' = (IF ReleaseMarks THEN Now ELSE markTime)
  /\ UNCHANGED <<status, resumes, pauses, at, clock, backs, optedOut, wpc, wresume, wtime, wout, batch, spc, smark, stime, known, returns,
                 outThen, calledSo>>

\* Begin and Read: a writer reads the last resume, and then the profile.
SeesResume(w) == wresume' = [wresume EXCEPT ![w] = resumes] /\ wtime' = [wtime EXCEPT ![w] = Now]
SeesProfile(w) == wout' = [wout EXCEPT ![w] = optedOut]
Begin(w) ==
  /\ wpc[w] = "idle" /\ batch = "none" /\ status = "sending" /\ wpc' = [wpc EXCEPT ![w] = "half"]
  /\ \/ ResumeReadFirst /\ SeesResume(w) /\ UNCHANGED wout
     \/ ~ResumeReadFirst /\ SeesProfile(w) /\ UNCHANGED <<wresume, wtime>>
  /\ UNCHANGED <<status, resumes, pauses, at, clock, backs, optedOut, batch, gate, mark, markTime, spc, smark, stime, known, returns,
                 outThen, calledSo>>
Read(w) ==
  /\ wpc[w] = "half" /\ wpc' = [wpc EXCEPT ![w] = "read"]
  /\ \/ ResumeReadFirst /\ SeesProfile(w) /\ UNCHANGED <<wresume, wtime>>
     \/ ~ResumeReadFirst /\ SeesResume(w) /\ UNCHANGED wout
  /\ UNCHANGED <<status, resumes, pauses, at, clock, backs, optedOut, batch, gate, mark, markTime, spc, smark, stime, known, returns,
                 outThen, calledSo>>
\* What a writer compares: whether the origin was resumed since.
ResumedSince(w) == (ComparesNumbers /\ wresume[w] # resumes) \/ (~ComparesNumbers /\ resumes > 0 /\ at > wtime[w])
Forgets(w) == wresume' = [wresume EXCEPT ![w] = 0] /\ wtime' = [wtime EXCEPT ![w] = 0] /\ wout' = [wout EXCEPT ![w] = FALSE]
\* Write: the profile gets a notification, which is skipped if it has opted out.
Write(w) ==
  /\ wpc[w] = "read" /\ status = "sending" /\ (~ResumedSince(w) \/ ~WriteReadsResume)
  /\ batch' = (IF batch # "none" THEN batch ELSE IF wout[w] THEN "skipped" ELSE "ready")
  /\ wpc' = [wpc EXCEPT ![w] = "idle"] /\ Forgets(w)
  /\ UNCHANGED <<status, resumes, pauses, at, clock, backs, optedOut, gate, mark, markTime, spc, smark, stime, known, returns, outThen,
                 calledSo>>
\* Stop: a writer finds the origin paused, or resumed since.
Stop(w) ==
  /\ wpc[w] = "read" /\ (status = "paused" \/ (ResumedSince(w) /\ WriteReadsResume))
  /\ wpc' = [wpc EXCEPT ![w] = IF status = "paused" \/ StoppedRunsAgain THEN "idle" ELSE "ended"] /\ Forgets(w)
  /\ UNCHANGED <<status, resumes, pauses, at, clock, backs, optedOut, batch, gate, mark, markTime, spc, smark, stime, known, returns,
                 outThen, calledSo>>

\* Claim: a sender leases the batch. It must read the audience again if the batch
\* is marked, and it has not done so since.
Remembers(s) == IF MemoryHasMark THEN known[s] = mark ELSE known[s] # 0
Claim(s) ==
  /\ spc[s] = "idle" /\ batch = "ready" /\ gate = "open" /\ batch' = "leased"
  /\ smark' = [smark EXCEPT ![s] = mark] /\ stime' = [stime EXCEPT ![s] = Now]
  /\ spc' = [spc EXCEPT ![s] = IF mark # 0 /\ MarkedIsReadAgain /\ ~Remembers(s) THEN "claimed" ELSE "checked"]
  /\ UNCHANGED <<status, resumes, pauses, at, clock, backs, optedOut, wpc, wresume, wtime, wout, gate, mark, markTime, known, returns,
                 outThen, calledSo>>
Ends(s) == spc' = [spc EXCEPT ![s] = "idle"] /\ smark' = [smark EXCEPT ![s] = 0] /\ stime' = [stime EXCEPT ![s] = 0]
\* Recheck reads the audience again.
Recheck(s) ==
  /\ spc[s] = "claimed"
  /\ \/ optedOut /\ batch' = "skipped" /\ Ends(s)
     \/ ~optedOut /\ spc' = [spc EXCEPT ![s] = "wanted"] /\ UNCHANGED <<batch, smark, stime>>
  /\ UNCHANGED <<status, resumes, pauses, at, clock, backs, optedOut, wpc, wresume, wtime, wout, gate, mark, markTime, known, returns,
                 outThen, calledSo>>
\* Remember: the answer has come, and the process remembers it.
Remember(s) ==
  /\ spc[s] = "wanted" /\ spc' = [spc EXCEPT ![s] = "checked"]
  /\ known' = [known EXCEPT ![s] = IF RemembersClaim THEN smark[s] ELSE mark]
  /\ UNCHANGED <<status, resumes, pauses, at, clock, backs, optedOut, wpc, wresume, wtime, wout, batch, gate, mark, markTime, smark, stime,
                 returns, outThen, calledSo>>
\* Whether the batch was marked since the claim.
MarkedSince(s) ==
  WindowReadsMark /\ ((ComparesNumbers /\ smark[s] # mark) \/ (~ComparesNumbers /\ mark # 0 /\ markTime > stime[s]))
\* Open: a window opens, and the profile is called.
Open(s) ==
  /\ spc[s] = "checked" /\ gate = "open" /\ ~MarkedSince(s)
  /\ batch' = (IF optedOut THEN "late" ELSE "called") /\ Ends(s) /\ calledSo' = outThen
  /\ UNCHANGED <<status, resumes, pauses, at, clock, backs, optedOut, wpc, wresume, wtime, wout, gate, mark, markTime, known, returns,
                 outThen>>
\* GiveBack: a sender finds the gate closed or the batch marked, or returns it
\* without a call, as at a shutdown.
GiveBack(s) ==
  /\ spc[s] = "checked" /\ batch' = "ready" /\ Ends(s)
  /\ \/ (gate = "held" \/ MarkedSince(s)) /\ UNCHANGED returns
     \/ returns > 0 /\ returns' = returns - 1
  /\ UNCHANGED <<status, resumes, pauses, at, clock, backs, optedOut, wpc, wresume, wtime, wout, gate, mark, markTime, known, outThen,
                 calledSo>>

Next ==
  \/ OptOut
  \/ SetBack
  \/ Pause
  \/ Resume
  \/ Release
  \/ \E w \in Writers : Begin(w)
  \/ \E w \in Writers : Read(w)
  \/ \E w \in Writers : Write(w)
  \/ \E w \in Writers : Stop(w)
  \/ \E s \in Senders : Claim(s)
  \/ \E s \in Senders : Recheck(s)
  \/ \E s \in Senders : Remember(s)
  \/ \E s \in Senders : Open(s)
  \/ \E s \in Senders : GiveBack(s)

\* Lemma's own steps are taken, and a pause is followed by a resume.
Fairness ==
  /\ WF_vars(Resume) /\ WF_vars(Release)
  /\ \A w \in Writers : WF_vars(Begin(w)) /\ WF_vars(Read(w)) /\ WF_vars(Write(w)) /\ WF_vars(Stop(w))
  /\ WF_vars(\E s \in Senders : Claim(s))
  /\ \A s \in Senders : WF_vars(Recheck(s)) /\ WF_vars(Remember(s)) /\ WF_vars(Open(s) \/ GiveBack(s))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* What holds.

\* The shape of the state: one process has the claim.
TypeOK == (batch = "leased") = (\E s \in Senders : spc[s] # "idle")
\* After a resume nobody is called by what was read before it: a profile that had
\* opted out by then is not called.
NoCallAfterResume == ~calledSo
\* Every profile is called or skipped, however often the origin is paused.
EveryProfileEnds == <>(batch \in {"called", "late", "skipped"})

-----------------------------------------------------------------------------
\* What must be reachable: each of these is expected to be violated.

NeverStopped == ~\E w \in Writers : wpc[w] = "read" /\ wresume[w] # resumes /\ status = "sending" /\ batch = "none"
NeverMarkedInClaim == ~\E s \in Senders : spc[s] = "checked" /\ gate = "open" /\ smark[s] # mark
NeverRemembered == ~\E s \in Senders : spc[s] = "checked" /\ known[s] # 0 /\ known[s] = mark /\ returns < Returns
NeverCalledLate == batch # "late"
=============================================================================
