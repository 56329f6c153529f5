-- Check the next few entries of one request stream.
-- Entries that were delivered but are not pending (their consumer was deleted, the group began after them, or a client
-- acknowledged without deleting) would wait forever: they become pending with an expired lease.
-- KEYS[1] request stream
-- ARGV[1] group, ARGV[2] where to begin, '': at the first entry that was never delivered, ARGV[3] how many,
-- ARGV[4] deadlines before this are overdue (Unix ms), ARGV[5] consumer that holds repaired entries,
-- ARGV[6] idle ms to give them
-- Returns {where to continue or '' at the end, repaired, {entry id, request id, deadline} per overdue entry ...}
local LAST_ID = '18446744073709551615-18446744073709551615'

local function split(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

local function delivered_up_to()
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local info = {}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    if info['name'] == ARGV[1] then return info['last-delivered-id'] end
  end
end

if redis.call('EXISTS', KEYS[1]) == 0 then return {'', 0} end
local bound, begin = delivered_up_to(), ARGV[2]
if begin == '' then
  if bound == LAST_ID then return {'', 0} end -- nothing follows it, and Redis refuses to look
  begin = bound and '(' .. bound or '-'
end
local entries = redis.call('XRANGE', KEYS[1], begin, '+', 'COUNT', ARGV[3])
if #entries == 0 then return {'', 0} end
local first, last = entries[1][1], entries[#entries][1]

local pending = {}
local reply = {#entries == tonumber(ARGV[3]) and last or '', 0}
if bound then
  for _, item in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], first, last, #entries)) do pending[item[1]] = true end
end

-- Pending entries whose bodies are gone may cut the list above short, so ask again before repairing.
local function is_pending(id)
  return pending[id] or #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1) > 0
end

for _, entry in ipairs(entries) do
  local id, fields = entry[1], {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  if bound then
    local ms, seq = split(id)
    local last_ms, last_seq = split(bound)
    local delivered = ms < last_ms or (ms == last_ms and seq <= last_seq)
    if delivered and not is_pending(id) then
      redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[5], 0, id, 'IDLE', ARGV[6], 'RETRYCOUNT', 0, 'FORCE', 'JUSTID')
      reply[2] = reply[2] + 1
    end
  end
  local deadline = tonumber(fields['deadline'] or '')
  if deadline and deadline < tonumber(ARGV[4]) then
    reply[#reply + 1] = {id, fields['id'] or '', fields['deadline']}
  end
end
return reply
