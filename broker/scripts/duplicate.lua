-- Drop a second entry with the same id; `seen` then names the entry that remains.
-- KEYS[1] request stream, KEYS[2] seen key, KEYS[3] work
-- ARGV[1] group, ARGV[2] entry id, ARGV[3] its reference, ARGV[4] reference of the entry that remains
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
release(KEYS[3], ARGV[3])
if redis.call('GET', KEYS[2]) == ARGV[3] then
  redis.call('SET', KEYS[2], ARGV[4], 'KEEPTTL')
end
return 1
