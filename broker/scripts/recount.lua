-- Remove entries from the books that were deleted without acknowledge.lua, if there are any.
-- KEYS[1..4] request streams, KEYS[5] work   ARGV[1] cursor, 0 at first, ARGV[2] how many records to check
-- Returns {cursor to continue from, 0 at the end, how many were removed}
local streams, too_many = {}, false
for i = 1, 4 do
  local class = string.match(KEYS[i], '[^:]+$')
  streams[class] = KEYS[i]
  local counted = redis.pcall('HGET', KEYS[5], 'requests ' .. class)
  if type(counted) == 'string' and tonumber(counted) > redis.call('XLEN', KEYS[i]) then too_many = true end
end
if not too_many then return {'0', 0} end
local page, released = redis.call('HSCAN', KEYS[5], ARGV[1], 'COUNT', ARGV[2]), 0
for i = 1, #page[2], 2 do
  local ref = page[2][i]
  local class, id = string.match(ref, '^(%S+) (%d+%-%d+)$')
  if class and streams[class] and #redis.call('XRANGE', streams[class], id, id) == 0 then
    released = released + release(KEYS[5], ref)
  end
end
return {page[1], released}
