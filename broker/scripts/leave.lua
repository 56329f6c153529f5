-- A gateway stops reading this reply: the client's grace period begins, unless another gateway reads it.
-- KEYS[1] clients, KEYS[2] readers of the reply   ARGV[1] gateway, ARGV[2] grace ms, ARGV[3] request id
-- Returns when the client counts as gone (Unix ms), 0 if the request depends on no client
redis.call('HDEL', KEYS[2], ARGV[1])
if not redis.call('ZSCORE', KEYS[1], ARGV[3]) then return 0 end
local time = redis.call('TIME')
local last_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
for _, until_ms in ipairs(redis.call('HVALS', KEYS[2])) do last_ms = math.max(last_ms, tonumber(until_ms) or 0) end
redis.call('ZADD', KEYS[1], last_ms + tonumber(ARGV[2]), ARGV[3])
return last_ms + tonumber(ARGV[2])
