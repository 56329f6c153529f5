-- Claim requests that were never delivered, each time the one with the greatest precedence: age times weight of its class
-- KEYS request streams, most urgent class first
-- ARGV[1] group, ARGV[2] consumer, ARGV[3] how many at most, ARGV[4] weight of a class relative to the next lower one,
-- ARGV[5] the least age of a request, in milliseconds
-- Returns {{number of its stream in KEYS, entry id, fields} ...}; NOGROUP, with nothing claimed, if a stream or its
-- group is missing; another error of a stream if no other stream has an entry
local group, consumer, class_weight, least_age_ms = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])

-- The clock that made the entry ids, read once so that all entries are aged alike.
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local LAST_ID = '18446744073709551615-18446744073709551615'

-- The first entry after an id is the oldest waiting one of its class, so no other entry of the class can precede it.
local function precedence_behind(number, id)
  if id == LAST_ID then return nil end -- nothing follows it, and Redis refuses to look
  local entries = redis.call('XRANGE', KEYS[number], '(' .. id, '+', 'COUNT', 1)
  if #entries == 0 then return nil end
  local age_ms = math.max(now_ms - tonumber(string.match(entries[1][1], '^%d+')), 1)
  if age_ms < least_age_ms then return nil end -- those behind it are younger
  return age_ms * class_weight ^ (#KEYS - number)
end

local function last_delivered(groups)
  for _, flat in ipairs(groups) do
    local info = {}
    for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
    if info['name'] == group then return info['last-delivered-id'] end
  end
end

local precedences, failed = {}, nil
for number, key in ipairs(KEYS) do
  local groups = redis.pcall('XINFO', 'GROUPS', key)
  if groups.err and not string.find(groups.err, 'no such key', 1, true) then
    failed = groups
  else
    local id = last_delivered(groups)
    if not id then return redis.error_reply('NOGROUP no group ' .. group .. ' of ' .. key) end
    precedences[number] = precedence_behind(number, id)
  end
end

local function first()
  local found
  for number = 1, #KEYS do
    if precedences[number] and (not found or precedences[number] > precedences[found]) then found = number end
  end
  return found
end

local claimed = {}
while #claimed < tonumber(ARGV[3]) do
  local number = first()
  if not number then break end
  local reply = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', KEYS[number], '>')
  local entry = reply and reply[1][2][1]
  if entry then
    claimed[#claimed + 1] = {number, entry[1], entry[2]}
    precedences[number] = precedence_behind(number, entry[1])
  else
    precedences[number] = nil
  end
end
if #claimed == 0 and failed then return failed end
return claimed
