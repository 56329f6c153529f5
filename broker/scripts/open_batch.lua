-- Enter a batch among those that gateways have to run, unless its tenant has as many there as it may.
-- KEYS[1] open batches: id → tenant
-- ARGV[1] id, ARGV[2] tenant, ARGV[3] most open batches of one tenant
-- Returns 1 entered, by this call or before, or 0: not
if redis.call('HGET', KEYS[1], ARGV[1]) then return 1 end
local count = 0
for _, tenant in ipairs(redis.call('HVALS', KEYS[1])) do
  if tenant == ARGV[2] then count = count + 1 end
end
if count >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
