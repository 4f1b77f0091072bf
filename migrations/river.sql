-- River writes the time of the process that inserts a job, and gives the job to a worker when the
-- clock of the database has reached it. A job that is available runs now, whatever the clock of
-- the process.
create function river_job_due() returns trigger language plpgsql as $$
begin
    new.scheduled_at := now();
    return new;
end $$;
create trigger river_job_due before insert on river_job
    for each row when (new.state = 'available' and new.scheduled_at > now()) execute function river_job_due();
