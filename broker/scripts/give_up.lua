-- Cancel a request because its client is gone, unless the client has returned in the meantime.
-- KEYS[1] clients, KEYS[2] cancel key
-- ARGV[1] request id, ARGV[2] ms until another gateway tries again, ARGV[3] when the cancel key expires (Unix ms)
-- Returns 1 cancelled, 0 the client is there, or the request no longer depends on a client
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local gone_ms = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not gone_ms or tonumber(gone_ms) > now_ms then return 0 end
redis.call('SET', KEYS[2], '1', 'PXAT', ARGV[3])
redis.call('ZADD', KEYS[1], now_ms + tonumber(ARGV[2]), ARGV[1])
return 1
