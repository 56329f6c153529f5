-- Rewrite the `seen` key unchanged if it names an entry, so that a WAITAOF after this call also covers that entry.
-- KEYS[1] seen key   ARGV[1] class and entry id
-- Returns 1, or 0 if this server has no such entry of the request
local seen = redis.pcall('GET', KEYS[1])
if type(seen) ~= 'string' or string.match(seen, '^%S+ %S+') ~= ARGV[1] then return 0 end
local left_ms = redis.call('PTTL', KEYS[1])
if left_ms <= 0 then return 0 end
return redis.call('PEXPIRE', KEYS[1], left_ms)
