-- Prepended to other scripts: stop counting one stored response. KEYS[1] expiries, KEYS[2] bytes.
-- Returns 1 if it was counted until now, else 0.
local function uncount(id)
  local bytes = redis.call('HGET', KEYS[2], id)
  redis.call('ZREM', KEYS[1], id)
  if not bytes then return 0 end
  redis.call('HDEL', KEYS[2], id)
  redis.call('HINCRBY', KEYS[2], ' total', -tonumber(bytes))
  return 1
end
