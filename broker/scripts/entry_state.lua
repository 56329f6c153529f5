-- Return the state of one queue entry without its body.
-- KEYS[1] request stream   ARGV[1] group, ARGV[2] entry id
-- Returns {exists 0|1, consumer or '', idle ms, deliveries}
local exists = #redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2]) > 0 and 1 or 0
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)
if pending.err or #pending == 0 then
  return {exists, '', 0, 0}
end
return {exists, pending[1][2], pending[1][3], pending[1][4]}
