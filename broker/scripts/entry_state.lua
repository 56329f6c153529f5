-- Return the state of one queue entry without its body.
-- KEYS[1] request stream   ARGV[1] group, ARGV[2] entry id, ARGV[3] id of its request
-- Returns {exists 0|1, consumer or '', idle ms, deliveries}; an entry of another request does not exist
local request = request_of(KEYS[1], ARGV[2])
if request and request ~= ARGV[3] then return {0, '', 0, 0} end
local exists = request and 1 or 0
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)
if pending.err or #pending == 0 then
  return {exists, '', 0, 0}
end
return {exists, pending[1][2], pending[1][3], pending[1][4]}
