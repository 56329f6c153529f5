-- Make a job unless it is there; from its first moment on it expires, whatever becomes of whoever makes it.
-- KEYS[1] job
-- ARGV[1] order, ARGV[2] when it expires (Unix ms)
-- Returns the order that counts
redis.call('HSETNX', KEYS[1], 'order', ARGV[1])
if redis.call('PTTL', KEYS[1]) == -1 then redis.call('PEXPIREAT', KEYS[1], ARGV[2]) end
return redis.call('HGET', KEYS[1], 'order')
