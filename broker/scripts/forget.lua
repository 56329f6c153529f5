-- Delete a consumer only if it holds nothing: its pending entries would be lost with it.
-- KEYS[1] request stream   ARGV[1] group, ARGV[2] consumer, ARGV[3] minimum idle ms
-- Returns 1 deleted, 0 left alone
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then return 0 end
for _, consumer in ipairs(consumers) do
  local info = {}
  for i = 1, #consumer, 2 do info[consumer[i]] = consumer[i + 1] end
  if info['name'] == ARGV[2] and info['pending'] == 0 and info['idle'] >= tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
    return 1
  end
end
return 0
