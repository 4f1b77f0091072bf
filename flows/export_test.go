package flows

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/flows/enrollment"
	"lemma/flows/execution"
)

// What the tests of this package use of its internals.

type ShardLease = shardLease

const (
	IdleMost    = idleMost
	GiveUpAfter = giveUpAfter

	EraseEnrollments = eraseEnrollments
	EraseMessages    = eraseMessages
	EraseTriggers    = eraseTriggers
)

func NewShardLease(ws, flow uuid.UUID) ShardLease { return shardLease{ws: ws, flow: flow} }

func (t *shardLease) Shard() enrollment.Shard { return t.where() }

func (f *Flows) Connections() *pgxpool.Pool { return f.pool }

func (f *Flows) Waker() *enrollment.Waker { return f.waker }

func (f *Flows) SetWaker(w *enrollment.Waker) { f.waker = w }

func (f *Flows) SetMoveTime(d time.Duration) { f.moveTime = d }

func (f *Flows) SetEraseTime(d time.Duration) { f.eraseTime = d }

func (f *Flows) SetTraceTime(d time.Duration) { f.traceTime = d }

func (f *Flows) SetForgetPage(rows int) { f.forgetPage = rows }

// FindOldEvents returns how many events past their retention there are, and how many of them
// are to be deleted.
func (f *Flows) FindOldEvents(ctx context.Context, tx pgx.Tx) (read, gone int, err error) {
	after := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	old, read, err := f.findEventsBy(ctx, tx, &after)
	return read, len(old.keys), err
}

func (f *Flows) SetIdlePoll(took time.Duration) { f.idlePoll.Store(int64(took)) }

func (f *Flows) PollShards(ctx context.Context) { f.pollShards(ctx) }

func (f *Flows) Work(ctx context.Context) { f.work(ctx) }

func (f *Flows) WorkAt(ctx context.Context, where enrollment.Shard) { f.workAt(ctx, where) }

func (f *Flows) RunAt(ctx context.Context, where enrollment.Shard) (int, bool, error) {
	return f.runOnce(ctx, where)
}

func (f *Flows) ClaimShard(ctx context.Context, where enrollment.Shard) (*ShardLease, error) {
	return f.claimShard(ctx, where)
}

func (f *Flows) ReleaseShard(t ShardLease, rest time.Duration) error { return f.releaseShard(t, rest) }

func (f *Flows) ReadDue(ctx context.Context, t *ShardLease) ([]*execution.Execution, error) {
	return f.readDue(ctx, t)
}

func (f *Flows) TryChunk(ctx context.Context, t ShardLease, chunk []*execution.Execution) error {
	return f.tryChunk(ctx, &t, chunk)
}

func (f *Flows) MoveAround(ctx context.Context) error { return f.moveAround(ctx) }

func (f *Flows) RaiseBounds(ctx context.Context) error { return f.raiseBounds(ctx) }

func (f *Flows) ArchiveDrained(ctx context.Context) error { return f.archiveDrained(ctx) }

// ArchiveEmpty archives a flow that was empty when it was read.
func (f *Flows) ArchiveEmpty(ctx context.Context, ws, id uuid.UUID) error {
	return f.archiveAll(ctx, []flowRef{{WorkspaceID: ws, ID: id}})
}

// UseOf records what a definition names, without a transaction.
func UseOf(definition json.RawMessage) error {
	return publication{text: definition}.use(context.Background(), nil)
}

func (f *Flows) RecheckFailed(ws, flow uuid.UUID, version int, cause error) error {
	return f.recheckFailed(versionRef{ws, flow, version}, cause)
}

// SetRouteTime changes how long versions are compiled for one chunk.
func (f *Flows) SetRouteTime(d time.Duration) { f.routeTime = d }

// EnterWorker begins the work of a worker.
func (f *Flows) EnterWorker() (briefly bool) {
	briefly, _ = f.lockWaits.enter()
	return briefly
}
