-- Add a batch to those that gateways must run, unless its tenant already has as many open as allowed.
-- KEYS[1] open batches: id → tenant
-- ARGV[1] id, ARGV[2] tenant, ARGV[3] most open batches of one tenant
-- Returns 1 added, by this call or before, or 0 not added
if redis.call('HGET', KEYS[1], ARGV[1]) then return 1 end
local count = 0
for _, tenant in ipairs(redis.call('HVALS', KEYS[1])) do
  if tenant == ARGV[2] then count = count + 1 end
end
if count >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
