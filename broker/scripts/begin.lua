-- Begin the first epoch of a request, by the server's clock: only where there is no reply log and certainly nobody else
-- can have had the request yet
-- KEYS[1] reply log
-- ARGV[1] when its entry arrived, ARGV[2] until when its first claim holds, ARGV[3] when the log expires [all Unix ms],
--   ARGV[4] retention [ms], ARGV[5 ...] fields and values of the log's first entry
-- Returns the epoch; 0 if nothing was written
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if now_ms < tonumber(ARGV[1]) or now_ms >= tonumber(ARGV[2]) then return 0 end
redis.call('XADD', KEYS[1], string.format('%.0f-0', now_ms), unpack(ARGV, 5))
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.max(tonumber(ARGV[3]), now_ms + tonumber(ARGV[4]))))
return now_ms
