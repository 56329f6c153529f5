-- Return results of a job in order of arrival, up to a count or a number of bytes; at least one.
-- KEYS[1] its results
-- ARGV[1] where to begin, as in XRANGE, ARGV[2] most results, ARGV[3] bytes from which on no more are added
-- Returns entries, as XRANGE does
local page, bytes, begin = {}, 0, ARGV[1]
while #page < tonumber(ARGV[2]) and bytes < tonumber(ARGV[3]) do
  local entry = redis.call('XRANGE', KEYS[1], begin, '+', 'COUNT', 1)[1]
  if not entry then break end
  page[#page + 1] = entry
  begin = '(' .. entry[1]
  for _, part in ipairs(entry[2]) do bytes = bytes + #part end
end
return page
