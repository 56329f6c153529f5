-- Delete what is kept of a response. KEYS[1] expiries, KEYS[2] bytes, KEYS[3] what is kept   ARGV[1] id
-- Returns 1 deleted by this call, 0 not there any more
uncount(ARGV[1])
return redis.call('DEL', KEYS[3])
