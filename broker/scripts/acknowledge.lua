-- Remove an entry that has ended from the group, its stream and the books.
-- KEYS[1] request stream, KEYS[2] work
-- ARGV[1] group, ARGV[2] entry id, ARGV[3] class and entry id, ARGV[4] id of its request
-- Returns 1 deleted by this call, 0 already gone, or of another request
local request = request_of(KEYS[1], ARGV[2])
if request and request ~= ARGV[4] then return 0 end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
local deleted = redis.call('XDEL', KEYS[1], ARGV[2])
release(KEYS[2], ARGV[3])
return deleted
