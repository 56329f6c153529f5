-- Delete a reply log if its newest entry is still the expected one.   KEYS[1] reply log   ARGV[1] expected newest entry
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if #newest == 0 or newest[1][1] ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
