-- Requests whose clients are gone, the longest gone first.
-- KEYS[1] clients   ARGV[1] minimum time gone, ms, ARGV[2] how many at most
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms - ARGV[1], 'LIMIT', 0, ARGV[2])
