-- Count a tenant's stored response, and name the responses that must be deleted to make room.
-- KEYS[1] sorted set of ids by when they expire (Unix ms); KEYS[2] hash of their bytes, and of all under ' total'
-- ARGV[1] id, ARGV[2] bytes, ARGV[3] when it expires (Unix ms), ARGV[4] most bytes of all
-- Returns the ids beyond the bound, the first to expire: the caller deletes their stored responses
local AT_ONCE = 64
local now_ms = tonumber(redis.call('TIME')[1]) * 1000
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, AT_ONCE)) do uncount(id) end
uncount(ARGV[1])
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
local total, dropped = redis.call('HINCRBY', KEYS[2], ' total', ARGV[2]), {}
-- A bounded number per call: after a bound was lowered, it is reached over several calls.
while total > tonumber(ARGV[4]) and #dropped < AT_ONCE do
  local id = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'LIMIT', 0, 1)[1]
  if not id then break end
  uncount(id)
  dropped[#dropped + 1] = id
  total = tonumber(redis.call('HGET', KEYS[2], ' total'))
end
-- The keys live as long as the longest-lived response that they describe.
for _, key in ipairs(KEYS) do
  if redis.call('PTTL', key) < tonumber(ARGV[3]) - now_ms then redis.call('PEXPIREAT', key, ARGV[3]) end
end
return dropped
