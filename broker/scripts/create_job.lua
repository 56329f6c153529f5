-- Create a job unless it exists. It has an expiry from its first moment, even if its creator dies.
-- KEYS[1] job
-- ARGV[1] order, ARGV[2] when it expires (Unix ms)
-- Returns the order that applies
redis.call('HSETNX', KEYS[1], 'order', ARGV[1])
if redis.call('PTTL', KEYS[1]) == -1 then redis.call('PEXPIREAT', KEYS[1], ARGV[2]) end
return redis.call('HGET', KEYS[1], 'order')
