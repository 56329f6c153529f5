-- Take an entry that is done with out of the group and out of its stream, together.
-- KEYS[1] request stream   ARGV[1] group, ARGV[2] entry id   Returns 1 deleted, 0 it was gone
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return redis.call('XDEL', KEYS[1], ARGV[2])
