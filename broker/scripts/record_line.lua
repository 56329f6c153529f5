-- Store the result of one line of a job, once: a line with a result is no longer among the job's lines.
-- KEYS[1] job, KEYS[2] its lines, KEYS[3] its results
-- ARGV[1] number of the line, ARGV[2] result, ARGV[3] its outcome, whose counts it raises: completed or failed
-- Returns 1 stored, 0 not: there is one; or -1: there is no such job
local left_ms = redis.call('PTTL', KEYS[1])
if left_ms == -2 then return -1 end
local id = ARGV[1] .. '-0'
if #redis.call('XRANGE', KEYS[2], id, id) == 0 then return 0 end
-- The first write: if memory is full, it is refused and nothing has changed. Later writes do not fail for lack of memory.
redis.call('XADD', KEYS[3], '*', 'line', ARGV[1], 'result', ARGV[2], 'outcome', ARGV[3])
redis.call('XDEL', KEYS[2], id)
redis.call('HINCRBY', KEYS[1], ARGV[3], 1)
redis.call('HINCRBY', KEYS[1], ARGV[3] .. '_bytes', #ARGV[2])
if left_ms > 0 then redis.call('PEXPIRE', KEYS[3], left_ms) end
return 1
