-- Record a worker's throughput; expired reports are removed.
-- KEYS[1] throughput   ARGV[1] worker, ARGV[2] ms that the report counts, ARGV[3] report, JSON object; '': it stopped serving
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  local until_ms = tonumber(string.match(flat[i + 1], '^%d+') or '')
  if flat[i] == ARGV[1] or not until_ms or until_ms <= now_ms then redis.call('HDEL', KEYS[1], flat[i]) end
end
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now_ms + tonumber(ARGV[2])) .. ' ' .. ARGV[3])
end
return 1
