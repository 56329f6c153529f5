-- Renew the leases that are still this worker's.
-- KEYS[1] request stream   ARGV[1] group, ARGV[2] worker, ARGV[3..] entry ids
-- Returns per entry 1 owned, 0 not owned
local flags = {}
for i = 3, #ARGV do
  local id, flag = ARGV[i], 0
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if not pending.err and #pending > 0 and pending[1][2] == ARGV[2] then
    local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'JUSTID')
    if #claimed > 0 then flag = 1 end
  end
  flags[i - 2] = flag
end
return flags
