-- Delete a stored response. KEYS[1] expiries, KEYS[2] bytes, KEYS[3] the response   ARGV[1] id
-- Returns 1 deleted by this call, 0 no longer there
uncount(ARGV[1])
return redis.call('DEL', KEYS[3])
