-- Drop a second entry of one id; `seen` then names the entry that stays.
-- KEYS[1] request stream, KEYS[2] seen key, KEYS[3] work   ARGV[1] group, ARGV[2] entry id, ARGV[3] it, ARGV[4] the one that stays
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
release(KEYS[3], ARGV[3])
if redis.call('GET', KEYS[2]) == ARGV[3] then
  redis.call('SET', KEYS[2], ARGV[4], 'KEEPTTL')
end
return 1
