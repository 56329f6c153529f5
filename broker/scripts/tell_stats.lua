-- Publish a worker's engine statistics if somebody watches.
-- KEYS[1] watched, KEYS[2] stats   ARGV[1] about how many entries to keep, ARGV[2] ms to keep them, ARGV[3] payload
-- Returns 1 published, 0 nobody watches
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[1], '*', 'payload', ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
