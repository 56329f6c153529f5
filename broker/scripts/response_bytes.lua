-- What is kept of one response counts no more. KEYS[1] expiries, KEYS[2] bytes, for the scripts that this stands in front
-- of. Returns 1 counted until now, 0 not.
local function uncount(id)
  local bytes = redis.call('HGET', KEYS[2], id)
  redis.call('ZREM', KEYS[1], id)
  if not bytes then return 0 end
  redis.call('HDEL', KEYS[2], id)
  redis.call('HINCRBY', KEYS[2], ' total', -tonumber(bytes))
  return 1
end
