-- Set how many deliveries of an entry count, if the entry is still this worker's; this also renews its lease.
-- KEYS[1] request stream   ARGV[1] group, ARGV[2] worker, ARGV[3] entry id, ARGV[4] number, or +1 for one more
-- Returns 1 done, 0 not this worker's
local id = ARGV[3]
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], id, id, 1)
if pending.err or #pending == 0 or pending[1][2] ~= ARGV[2] then return 0 end
local count = ARGV[4] == '+1' and pending[1][4] + 1 or tonumber(ARGV[4])
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'RETRYCOUNT', count, 'JUSTID')
return 1
