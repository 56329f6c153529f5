-- Report about a worker, so that the report always expires.
-- KEYS[1] the worker's hash   ARGV[1] ms to keep it, ARGV[2..] fields and values
-- Returns how many fields are new
local new = redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return new
