-- +goose Up
-- The constraints say which property of the specs they guard, so that whoever
-- meets one in the database learns what taking it away would break.

comment on constraint notifications_pkey on notifications is 'Campaign!AtMostOneNotificationPerRecipient';
comment on constraint notifications_place on notifications is 'Campaign!CountsBalance';
comment on constraint batches_pkey on batches is 'SendingEngine!OnlyOwnerCommits';
comment on constraint batches_attempt on batches is 'SendingEngine!BoundedSendCount, SendingEngine!AtMostOnceStrategy';
comment on constraint batches_lease on batches is 'SendingEngine!OnlyOwnerCommits';
comment on constraint batches_root on batches is 'Batch!OneRowPerOrdinal';
comment on constraint batches_counts on batches is 'Campaign!CountsBalance';
comment on constraint batches_end on batches is 'Batch!NoRowLeftBehind';
comment on constraint attempts_pkey on attempts is 'SendingEngine!OneOutcomePerAttempt, Batch!OneRowPerOrdinal';
comment on constraint attempts_bound on attempts is 'SendingEngine!BoundedSendCount';
comment on constraint attempts_final on attempts is 'SendingEngine!TerminalStable';
comment on constraint fanout_chunks_pkey on fanout_chunks is 'Campaign!CountsBalance';
comment on index provider_events_once is 'ProviderEvents!AppliedOnce';

-- +goose Down
comment on index provider_events_once is null;
comment on constraint fanout_chunks_pkey on fanout_chunks is null;
comment on constraint attempts_final on attempts is null;
comment on constraint attempts_bound on attempts is null;
comment on constraint attempts_pkey on attempts is null;
comment on constraint batches_end on batches is null;
comment on constraint batches_counts on batches is null;
comment on constraint batches_root on batches is null;
comment on constraint batches_lease on batches is null;
comment on constraint batches_attempt on batches is null;
comment on constraint batches_pkey on batches is null;
comment on constraint notifications_place on notifications is null;
comment on constraint notifications_pkey on notifications is null;
