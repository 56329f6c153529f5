-- All lines of a job have been added: it can be run.
-- KEYS[1] job, KEYS[2] its lines
-- ARGV[1] number of lines
-- Returns 1 sealed, by this call or before; 0 not: a line is missing, and all must be added again;
--      or -1: there is no such job
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
if redis.call('HGET', KEYS[1], 'total') then return 1 end
if redis.call('XLEN', KEYS[2]) ~= tonumber(ARGV[1]) then
  redis.call('DEL', KEYS[2])
  return 0
end
redis.call('HSET', KEYS[1], 'total', ARGV[1])
return 1
