-- Begin the first epoch of a request: by the server's clock, and only where there is no reply log
-- KEYS[1] reply log   ARGV[1] when it expires [Unix ms], ARGV[2] retention [ms], ARGV[3 ...] fields and values of its first entry
-- Returns the epoch; 0 where something is there, which stays as it is
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local time = redis.call('TIME')
local epoch = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('XADD', KEYS[1], string.format('%.0f-0', epoch), unpack(ARGV, 3))
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.max(tonumber(ARGV[1]), epoch + tonumber(ARGV[2]))))
return epoch
