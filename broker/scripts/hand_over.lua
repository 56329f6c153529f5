-- Make the leases that are still this worker's expire at once. These deliveries do not count as attempts.
-- KEYS[1] request stream   ARGV[1] group, ARGV[2] worker, then for each entry its id, the idle ms to set, and the number
-- of deliveries to take back
-- Returns per entry 1 handed over, 0 not this worker's
local done = {}
for i = 3, #ARGV, 3 do
  local id, handed = ARGV[i], 0
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if not pending.err and #pending > 0 and pending[1][2] == ARGV[2] then
    local count = math.max(pending[1][4] - tonumber(ARGV[i + 2]), 0)
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'IDLE', ARGV[i + 1], 'RETRYCOUNT', count, 'JUSTID')
    handed = 1
  end
  done[i / 3] = handed
end
return done
