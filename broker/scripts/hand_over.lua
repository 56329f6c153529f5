-- Make the leases that are still this worker's expire at once. The delivery does not count as an attempt.
-- KEYS[1] request stream   ARGV[1] group, ARGV[2] worker, ARGV[3] idle ms to set, ARGV[4..] entry ids
-- Returns per entry 1 handed over, 0 not this worker's
local done = {}
for i = 4, #ARGV do
  local id, handed = ARGV[i], 0
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if not pending.err and #pending > 0 and pending[1][2] == ARGV[2] then
    local attempts = math.max(pending[1][4] - 1, 0)
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'IDLE', ARGV[3], 'RETRYCOUNT', attempts, 'JUSTID')
    handed = 1
  end
  done[i - 3] = handed
end
return done
