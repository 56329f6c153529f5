-- Set a request aside once, whichever caller comes first: acknowledge it, keep a copy with the reason, delete it.
-- KEYS[1] request stream, KEYS[2] dead letters, KEYS[3] work
-- ARGV[1] group, ARGV[2] entry id, ARGV[3] class and entry id, ARGV[4] reason, ARGV[5] message,
-- ARGV[6] 1: also a waiting entry, 0: only a pending one
-- ARGV[7] most letters, ARGV[8] most bytes of all letters: beyond, the oldest are dropped; ARGV[9] most bytes of one value
-- ARGV[10] id of its request, '' if it cannot be read
-- Returns 1 buried by this call, 0 no longer there, or of another request
local id = ARGV[2]
local request = request_of(KEYS[1], id)
if request and ARGV[10] ~= '' and request ~= ARGV[10] then return 0 end

local function bytes_of(fields)
  local bytes = 0
  for _, part in ipairs(fields) do bytes = bytes + #part end
  return bytes
end

-- The bytes of all earlier letters, as stated in this one; 0 if something else wrote it.
local function bytes_before(fields)
  return fields[9] == 'bytes_before' and tonumber(fields[10]) or 0
end

local function keep(fields)
  local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
  local before = newest and bytes_before(newest[2]) + bytes_of(newest[2]) or 0
  fields[10] = string.format('%.0f', before)
  local letter, written = redis.call('XADD', KEYS[2], '*', unpack(fields)), before + bytes_of(fields)
  -- A bounded number per call: after a bound was lowered, it is reached over several calls.
  for _ = 1, 64 do
    local oldest = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
    local fits = redis.call('XLEN', KEYS[2]) <= tonumber(ARGV[7])
    if oldest[1] == letter or (fits and written - bytes_before(oldest[2]) <= tonumber(ARGV[8])) then return end
    redis.call('XDEL', KEYS[2], oldest[1])
  end
end

local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], id, id, 1)
local attempts = not pending.err and #pending > 0 and pending[1][4]
local entries = redis.call('XRANGE', KEYS[1], id, id)
if not attempts and (ARGV[6] == '0' or #entries == 0) then return 0 end
-- The copy comes first: if memory is full, it fails before anything is acknowledged.
if #entries > 0 then
  local copy = {'entry', ARGV[3], 'reason', ARGV[4], 'message', ARGV[5], 'attempts', tostring(attempts or 0), 'bytes_before', ''}
  -- No valid entry has more than a handful of fields, and unpack handles a few thousand values at most.
  for i = 1, math.min(#entries[1][2], 64) do copy[#copy + 1] = string.sub(entries[1][2][i], 1, ARGV[9]) end
  keep(copy)
end
redis.call('XACK', KEYS[1], ARGV[1], id)
redis.call('XDEL', KEYS[1], id)
release(KEYS[3], ARGV[3])
return 1
