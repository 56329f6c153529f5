-- Note of a job what has happened to it, once: the first mark of a name stays.
-- KEYS[1] job
-- ARGV[1] name, ARGV[2] value
-- Returns 1 noted, 0 not: there is such a mark; or -1: there is no such job
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
return redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
