-- Keep the result of one line of a job, once: what has a result is no longer among the lines.
-- KEYS[1] job, KEYS[2] its lines, KEYS[3] its results
-- ARGV[1] number of the line, ARGV[2] result, ARGV[3] its outcome, of which it raises the counts: completed or failed
-- Returns 1 kept, 0 not: there is one; or -1: there is no such job
local left_ms = redis.call('PTTL', KEYS[1])
if left_ms == -2 then return -1 end
local id = ARGV[1] .. '-0'
if #redis.call('XRANGE', KEYS[2], id, id) == 0 then return 0 end
-- The first write: out of memory it is refused, and nothing was done. Once it is done, memory stops nothing below.
redis.call('XADD', KEYS[3], '*', 'line', ARGV[1], 'result', ARGV[2], 'outcome', ARGV[3])
redis.call('XDEL', KEYS[2], id)
redis.call('HINCRBY', KEYS[1], ARGV[3], 1)
redis.call('HINCRBY', KEYS[1], ARGV[3] .. '_bytes', #ARGV[2])
if left_ms > 0 then redis.call('PEXPIRE', KEYS[3], left_ms) end
return 1
