-- Remove entries from the books that were deleted without acknowledge.lua, if there are any, and mend wrong sums: those
-- that an older version, or another program, has made.
-- KEYS[1..4] request streams, KEYS[5] work
-- ARGV[1] cursor, 0 at first, ARGV[2] how many records to check, ARGV[3] most entries of a queue whose sums are mended
-- Returns {cursor to continue from, 0 at the end, how many were removed}
local streams, depth = {}, 0
for i = 1, 4 do
  streams[string.match(KEYS[i], '[^:]+$')] = KEYS[i]
  depth = depth + redis.call('XLEN', KEYS[i])
end

-- A sum from the books: 0 if it has none, nil if that is no whole number
local function sum(field)
  local value = redis.pcall('HGET', KEYS[5], field)
  if type(value) ~= 'string' then return 0 end
  return string.match(value, '^%d+$') and tonumber(value)
end

-- Whether a class has more requests than entries, or sums that are no numbers
local function is_wrong()
  for class, stream in pairs(streams) do
    local requests, tokens = sum('requests ' .. class), sum('tokens ' .. class)
    if not requests or not tokens or requests > redis.call('XLEN', stream) then return true end
  end
  return false
end

-- Class and id of the entry that a field of the books is the record of; nil if it is a sum
local function parsed(field)
  local class, id = string.match(field, '^(%S+) (%d+%-%d+)$')
  if class and streams[class] then return class, id end
end

-- Compute the sums anew from the records. A record that cannot be read goes: its entry counts as one written by XADD.
local function add_up()
  local fields, sums = redis.call('HGETALL', KEYS[5]), {}
  local function add(field, number) sums[field] = (sums[field] or 0) + number end
  for i = 1, #fields, 2 do
    local class = parsed(fields[i])
    local tokens, tenant = string.match(fields[i + 1], '^(%d+) (%S+)$')
    if class and tokens then
      add('requests ' .. class, 1)
      add('tokens ' .. class, tokens)
      add('tenant ' .. tenant, 1)
      add('tenant-tokens ' .. tenant, tokens)
    else
      redis.call('HDEL', KEYS[5], fields[i])
    end
  end
  for field, number in pairs(sums) do redis.call('HSET', KEYS[5], field, string.format('%.0f', number)) end
end

if not is_wrong() then return {'0', 0} end
local page, released = redis.call('HSCAN', KEYS[5], ARGV[1], 'COUNT', ARGV[2]), 0
for i = 1, #page[2], 2 do
  local class, id = parsed(page[2][i])
  if class and #redis.call('XRANGE', streams[class], id, id) == 0 then
    released = released + release(KEYS[5], page[2][i])
  end
end
-- No record is left that explains it.
if page[1] == '0' and is_wrong() and depth <= tonumber(ARGV[3]) then add_up() end
return {page[1], released}
