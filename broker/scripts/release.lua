-- Prepended to other scripts: an entry that is gone no longer counts toward the work of its class and tenant. Each entry
-- is subtracted once, since its record goes with it.
local function release(work, ref)
  local record = redis.pcall('HGET', work, ref)
  if type(record) ~= 'string' then return 0 end
  redis.call('HDEL', work, ref)
  local tokens, tenant = string.match(record, '^(%d+) (%S+)$')
  if not tokens then return 0 end
  local class = string.match(ref, '^%S+')
  redis.pcall('HINCRBY', work, 'tokens ' .. class, '-' .. tokens)
  redis.pcall('HINCRBY', work, 'requests ' .. class, -1)
  redis.pcall('HINCRBY', work, 'tenant-tokens ' .. tenant, '-' .. tokens)
  local left = redis.pcall('HINCRBY', work, 'tenant ' .. tenant, -1)
  if type(left) == 'number' and left <= 0 then redis.call('HDEL', work, 'tenant ' .. tenant, 'tenant-tokens ' .. tenant) end
  return 1
end

