-- Delete a job's results of one outcome, a page at a time.
-- KEYS[1] its results
-- ARGV[1] where to begin, as in XRANGE, ARGV[2] outcome, ARGV[3] results to look at, at most,
-- ARGV[4] bytes from which on no more are looked at
-- Returns where to continue, '' at the end
local looked, bytes, begin = 0, 0, ARGV[1]
while looked < tonumber(ARGV[3]) and bytes < tonumber(ARGV[4]) do
  local entry = redis.call('XRANGE', KEYS[1], begin, '+', 'COUNT', 1)[1]
  if not entry then return '' end
  looked, begin = looked + 1, '(' .. entry[1]
  for i, part in ipairs(entry[2]) do
    bytes = bytes + #part
    if i % 2 == 0 and entry[2][i - 1] == 'outcome' and part == ARGV[2] then redis.call('XDEL', KEYS[1], entry[1]) end
  end
end
return begin
