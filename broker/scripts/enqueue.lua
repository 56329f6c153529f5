-- Accept a request once: bound on the queue, `seen`, XADD, together or not at all.
-- KEYS[1..4] request streams, most urgent first; KEYS[5] seen key
-- ARGV[1] number of the class's stream, ARGV[2] bound (-1: none), ARGV[3] when `seen` expires (Unix ms),
-- ARGV[4] class name, ARGV[5] names of the classes joined by spaces,
-- ARGV[6] entry that this one replaces if it is gone, or '', ARGV[7..] fields of the entry
-- Returns {class, entry id and perhaps how it ended and whose it was, or '' when full, duplicate 0|1, depth}
local function depth()
  local sum = 0
  for i = 1, 4 do sum = sum + redis.call('XLEN', KEYS[i]) end
  return sum
end

-- Number of the stream and entry id; nil where it is no `class entry-id`, after which two words may say how it ended and
-- whose it was
local function parsed(ref)
  local class, id, rest = string.match(ref, '^(%S+) (%d+%-%d+)(.*)$')
  if rest ~= '' and not (rest and string.match(rest, '^ %S+ %S+$')) then return nil end
  local i = 0
  for name in string.gmatch(ARGV[5], '%S+') do
    i = i + 1
    if name == class then return i, id end
  end
end

local function exists(ref)
  local i, id = parsed(ref)
  return i ~= nil and #redis.call('XRANGE', KEYS[i], id, id) > 0
end

local seen, replaces = redis.pcall('GET', KEYS[5]), ARGV[6]
-- What somebody else wrote there says nothing.
if type(seen) ~= 'string' or not parsed(seen) then seen = false end
if seen and (string.match(seen, '^%S+ %S+') ~= replaces or exists(seen)) then
  return {seen, 1, depth()}
end
if not seen and replaces ~= '' and exists(replaces) then
  redis.call('SET', KEYS[5], replaces, 'PXAT', ARGV[3])
  return {replaces, 1, depth()}
end
local before, bound = depth(), tonumber(ARGV[2])
if bound >= 0 and before >= bound then
  return {'', 0, before}
end
local stream = KEYS[tonumber(ARGV[1])]
local id = redis.call('XADD', stream, '*', unpack(ARGV, 7))
local ref = ARGV[4] .. ' ' .. id
local set = redis.pcall('SET', KEYS[5], ref, 'PXAT', ARGV[3])
if set.err then
  redis.call('XDEL', stream, id)
  return set
end
return {ref, 0, before + 1}
