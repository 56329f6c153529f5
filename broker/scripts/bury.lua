-- Set a request aside: acknowledge, keep a copy with the reason, delete; once, whoever comes first.
-- KEYS[1] request stream, KEYS[2] dead letters, KEYS[3] work
-- ARGV[1] group, ARGV[2] entry id, ARGV[3] class and entry id, ARGV[4] reason, ARGV[5] message,
-- ARGV[6] 1: also one that waits, 0: only one that is pending
-- Returns 1 buried by this call, 0 not there any more
local id = ARGV[2]
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], id, id, 1)
local attempts = not pending.err and #pending > 0 and pending[1][4]
local entries = redis.call('XRANGE', KEYS[1], id, id)
if not attempts and (ARGV[6] == '0' or #entries == 0) then return 0 end
-- The copy comes first: out of memory it fails before anything has been acknowledged.
if #entries > 0 then
  local copy = {'entry', ARGV[3], 'reason', ARGV[4], 'message', ARGV[5], 'attempts', attempts or 0}
  -- Nothing of the contract has more than a handful of fields, and unpack holds a few thousand values at most.
  for i = 1, math.min(#entries[1][2], 64) do copy[#copy + 1] = entries[1][2][i] end
  redis.call('XADD', KEYS[2], '*', unpack(copy))
end
redis.call('XACK', KEYS[1], ARGV[1], id)
redis.call('XDEL', KEYS[1], id)
release(KEYS[3], ARGV[3])
return 1
