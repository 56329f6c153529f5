-- The right to run a job, held by one runner at a time. A late runner does no harm: each line gets one result.
-- KEYS[1] job, KEYS[2] its runner
-- ARGV[1] name of the runner, ARGV[2] for how long, ms; 0: release the right
-- Returns 1 it has the right (until now, if released), 2 it has the right and the job is cancelled, 0 another has it;
--      or -1: there is no such job
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[2])
else
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
end
return redis.call('HGET', KEYS[1], 'cancelling_ms') and 2 or 1
