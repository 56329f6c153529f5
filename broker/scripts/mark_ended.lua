-- Record in the `seen` key how the request ended and its tenant, and keep it longer than its reply log.
-- KEYS[1] seen key
-- ARGV[1] class and entry id, or '' if unknown, ARGV[2] how it ended, ARGV[3] tenant,
-- ARGV[4] how long to keep it at least, ms
-- Returns 1 marked, 0 not: the key names another entry, which continues the request, or it cannot be written
local seen = redis.pcall('GET', KEYS[1])
local ref = type(seen) == 'string' and string.match(seen, '^%S+ %d+%-%d+')
if ref and ARGV[1] ~= '' and ref ~= ARGV[1] then return 0 end
ref = ref or ARGV[1]
if ref == '' then return 0 end
local keep_ms = math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[4]))
-- If memory is full, the mark stays as it is: the request must be acknowledged all the same.
local set = redis.pcall('SET', KEYS[1], ref .. ' ' .. ARGV[2] .. ' ' .. ARGV[3], 'PX', keep_ms)
return set.err and 0 or 1
