-- Record an event of a job once: the first mark of a name stays.
-- KEYS[1] job
-- ARGV[1] name, ARGV[2] value
-- Returns 1 recorded, 0 not: the mark exists; or -1: there is no such job
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
return redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
