-- A gateway reads these replies: its marks count for one lease. If a request depends on a client, the client counts as
-- present for that long, and then has its grace period.
-- KEYS[1] clients (request id -> when its client counts as gone, Unix ms), KEYS[2..] readers of one reply each
-- ARGV[1] gateway, ARGV[2] lease ms, ARGV[3] grace ms, then per reply: request id, 1: the gateway accepted it for a client
local time = redis.call('TIME')
local until_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[2])
for i = 2, #KEYS do
  local id, accepted = ARGV[2 * i], ARGV[2 * i + 1]
  redis.call('HSET', KEYS[i], ARGV[1], until_ms)
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
  if accepted == '1' or redis.call('ZSCORE', KEYS[1], id) then
    redis.call('ZADD', KEYS[1], until_ms + tonumber(ARGV[3]), id)
  end
end
return #KEYS - 1
