-- Renew the leases that are still this worker's, and read the cancel flags in the same call.
-- KEYS[1] request stream, KEYS[2..] cancel keys   ARGV[1] group, ARGV[2] worker, ARGV[3..] entry ids, same order
-- Returns per entry 0 not owned, 1 owned, 2 not owned and cancelled, 3 owned and cancelled
local flags = {}
for i = 3, #ARGV do
  local id, flag = ARGV[i], 0
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if not pending.err and #pending > 0 and pending[1][2] == ARGV[2] then
    local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'JUSTID')
    if #claimed > 0 then flag = 1 end
  end
  if redis.call('EXISTS', KEYS[i - 1]) == 1 then flag = flag + 2 end
  flags[i - 2] = flag
end
return flags
