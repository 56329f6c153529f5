-- Add a file to its tenant's list, or update it; expired files leave the list. An unreadable record stays, and counts as
-- a file without bytes.
-- KEYS[1] the tenant's files
-- ARGV[1] id, ARGV[2] the file as JSON with size_bytes and expires_ms, ARGV[3] now, ms,
-- ARGV[4] most bytes of all files together, ARGV[5] most files; 0: no limit
-- Returns {1}; or, if it is not added, {0, bytes} or {-1, files} that there would be
local file = cjson.decode(ARGV[2])
local bytes, files, latest_ms = file.size_bytes, 1, file.expires_ms
local entered = redis.call('HGETALL', KEYS[1])
local expired = {}
for at = 1, #entered, 2 do
  local is_json, other = pcall(cjson.decode, entered[at + 1])
  local expires_ms = is_json and type(other) == 'table' and tonumber(other.expires_ms)
  local size_bytes = expires_ms and tonumber(other.size_bytes)
  if not size_bytes then
    if entered[at] ~= ARGV[1] then files = files + 1 end
  elseif expires_ms <= tonumber(ARGV[3]) then
    expired[#expired + 1] = entered[at]
  elseif entered[at] ~= ARGV[1] then
    bytes, files, latest_ms = bytes + size_bytes, files + 1, math.max(latest_ms, expires_ms)
  end
end
local most_bytes, most_files = tonumber(ARGV[4]), tonumber(ARGV[5])
if most_bytes > 0 and bytes > most_bytes then return {0, bytes} end
if most_files > 0 and files > most_files then return {-1, files} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
for _, id in ipairs(expired) do redis.call('HDEL', KEYS[1], id) end
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', latest_ms))
return {1}
