-- Add an entry to a stream that expires, and set its expiry: a writer that dies leaves no stream that stays for good.
-- KEYS[1] stream
-- ARGV[1] when it expires, Unix ms, ARGV[2] id of the entry, ARGV[3] name of its field, ARGV[4] content
-- Returns 1 added, 0 not: its id is not above the newest
local added = redis.pcall('XADD', KEYS[1], ARGV[2], ARGV[3], ARGV[4])
local refused = type(added) == 'table' and added.err
if refused and not string.find(refused, 'equal or smaller', 1, true) then return added end
redis.call('PEXPIREAT', KEYS[1], ARGV[1])
return refused and 0 or 1
